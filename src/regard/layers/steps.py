"""One token of attention with a cache, as the einsums a student would write.

Projections are einsums over weights with a head axis; softmax goes through the one door, with scale 1.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from regard.attention.scores import ScoreRule
from regard.attention.shapes import check_rank, check_same_kind, named
from regard.attention.softmax import attend
from regard.errors import ShapeError


def mha_step(
    x: Float[Tensor, "batch model_dim"],
    past_k: Float[Tensor, "batch head past qk_dim"],
    past_v: Float[Tensor, "batch head past v_dim"],
    w_q: Float[Tensor, "head model_dim qk_dim"],
    w_k: Float[Tensor, "head model_dim qk_dim"],
    w_v: Float[Tensor, "head model_dim v_dim"],
    w_o: Float[Tensor, "head v_dim model_dim"],
) -> tuple[
    Float[Tensor, "batch model_dim"],
    Float[Tensor, "batch head key qk_dim"],
    Float[Tensor, "batch head key v_dim"],
]:
    """One token of multi-head attention with a cache (Shazeer 2019, 2.4.1); no scale, as the paper has it.

    Returns the output and the keys and values with the new ones at the end.
    """
    words = "batch model_dim, batch head past qk_dim, batch head past v_dim, head model_dim qk_dim, "
    words += "head model_dim qk_dim, head model_dim v_dim, head v_dim model_dim"
    _check_step(words, x=x, past_k=past_k, past_v=past_v, w_q=w_q, w_k=w_k, w_v=w_v, w_o=w_o)
    q = torch.einsum("bd,hdk->bhk", x, w_q)
    k = torch.cat([past_k, torch.einsum("bd,hdk->bhk", x, w_k)[:, :, None]], dim=2)
    v = torch.cat([past_v, torch.einsum("bd,hdv->bhv", x, w_v)[:, :, None]], dim=2)
    out = attend(q[:, :, None], k, v, ScoreRule(scale=1.0)).out
    y: Tensor = torch.einsum("bhv,hvd->bd", out[:, :, 0], w_o)
    return y, k, v


def mqa_step(
    x: Float[Tensor, "batch model_dim"],
    past_k: Float[Tensor, "batch past qk_dim"],
    past_v: Float[Tensor, "batch past v_dim"],
    w_q: Float[Tensor, "head model_dim qk_dim"],
    w_k: Float[Tensor, "model_dim qk_dim"],
    w_v: Float[Tensor, "model_dim v_dim"],
    w_o: Float[Tensor, "head v_dim model_dim"],
) -> tuple[
    Float[Tensor, "batch model_dim"],
    Float[Tensor, "batch key qk_dim"],
    Float[Tensor, "batch key v_dim"],
]:
    """One token of multi-query attention (Shazeer 2019, 3.1): one key and value head for all queries."""
    words = "batch model_dim, batch past qk_dim, batch past v_dim, head model_dim qk_dim, "
    words += "model_dim qk_dim, model_dim v_dim, head v_dim model_dim"
    _check_step(words, x=x, past_k=past_k, past_v=past_v, w_q=w_q, w_k=w_k, w_v=w_v, w_o=w_o)
    q = torch.einsum("bd,hdk->bhk", x, w_q)
    k = torch.cat([past_k, torch.einsum("bd,dk->bk", x, w_k)[:, None]], dim=1)
    v = torch.cat([past_v, torch.einsum("bd,dv->bv", x, w_v)[:, None]], dim=1)
    out = attend(q[:, :, None], k[:, None], v[:, None], ScoreRule(scale=1.0)).out
    y: Tensor = torch.einsum("bhv,hvd->bd", out[:, :, 0], w_o)
    return y, k, v


def _check_step(words: str, **tensors: Tensor) -> None:
    """Raise unless each tensor has its dimensions, and a word the same size wherever it stands."""
    check_same_kind(**tensors)
    sizes: dict[str, int] = {}
    for (name, tensor), names in zip(tensors.items(), words.split(", "), strict=True):
        check_rank(name, tensor, names.split())
        for word, size in zip(names.split(), tensor.shape, strict=True):
            if sizes.setdefault(word, size) != size:
                raise ShapeError(
                    f"{name} has {word} {size} and those before it have {sizes[word]}: they must be equal. "
                    f"Got {name} {named(names.split(), tensor.shape)}."
                )
