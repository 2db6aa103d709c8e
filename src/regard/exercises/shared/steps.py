"""What `mha-step` and `mqa-step` share: reference, calls and probes of one step with a cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Probe, Trial, changed, first_sequence, formula
from regard.exercises.shared.lengths import large_scores


@dataclass(frozen=True)
class Choices:
    """The decisions of one step of attention with a cache."""

    scale: str = "none"
    query_by: str = "q"
    key_by: str = "k"
    queries: str = "of each head"
    keys: str = "of each head"
    values: str = "of each head"
    cache: str = "new behind"
    new_k: str = "the key"
    new_v: str = "the value"
    sees: str = "the new cache"
    softmax: str = "scores.softmax(-1)"
    weights: str = "of each head"
    heads: str = "summed"
    plus: str = "nothing"
    returned: str = "the new caches"


def stepped(case: Case, *, shared: bool, **choices: str) -> tuple[Tensor, Tensor, Tensor]:
    """One token of attention (Shazeer 2019), in which keys and values are `shared` by all heads or not."""
    c = Choices(**choices)
    x, past_k, past_v, w_q, w_k, w_v, w_o = case.args
    by = {"q": w_q, "k": w_k}
    one = "bd,dk->bk" if shared else "bd,hdk->bhk"
    q = torch.einsum("bd,hdk->bhk", x, by[c.query_by])
    if c.queries != "of each head":
        queries = {"summed": q.sum(1, keepdim=True), "averaged": q.mean(1, keepdim=True)}
        q = queries.get(c.queries, q[:, :1]).expand_as(q)
    key, value = torch.einsum(one, x, by[c.key_by]), torch.einsum(one, x, w_v)
    k = _grown(past_k, key if c.new_k == "the key" else value, c.cache.removeprefix("keys: "))
    v = _grown(past_v, value if c.new_v == "the value" else key, c.cache.removeprefix("values: "))
    seen_k = past_k if c.sees in ("the old cache", "the new value alone") else k
    seen_v = past_v if c.sees == "the old cache" else v
    if c.keys == "of the first head":
        seen_k = seen_k[:, :1].expand_as(seen_k)
    if c.values == "of the first head":
        seen_v = seen_v[:, :1].expand_as(seen_v)
    many = "bn" if shared else "bhn"
    logits = torch.einsum(f"bhk,{many}k->bhn", q, seen_k)
    logits = logits / {
        "root": q.shape[-1] ** 0.5,
        "k": q.shape[-1],
        "the number of heads": q.shape[1],
        "root of the number of heads": q.shape[1] ** 0.5,
        "root of the number of positions": logits.shape[-1] ** 0.5,
        "root of the model's width": x.shape[-1] ** 0.5,
        "times the root of k": q.shape[-1] ** -0.5,
    }.get(c.scale, 1.0)
    weights = formula(c.softmax, scores=logits)
    if c.weights in ("averaged over the heads", "of the first head"):
        shared_by_all = weights[:, :1] if c.weights == "of the first head" else weights.mean(1, keepdim=True)
        weights = shared_by_all.expand_as(weights)
    elif c.weights == "weights.softmax(-1)":
        weights = weights.softmax(-1)
    heads = torch.einsum(f"bhn,{many}v->bhv", weights, seen_v)
    y = torch.einsum("bhv,hvd->bd", heads, w_o)
    if c.heads == "averaged":
        y = y / w_o.shape[0]
    elif c.heads == "the first":
        y = heads[:, 0] @ w_o[0]
    elif c.heads == "all by the first W_o":
        y = heads.sum(1) @ w_o[0]
    elif c.heads == "all by all W_o":
        y = heads.sum(1) @ w_o.sum(0)
    elif c.heads == "number by number":
        y = heads.transpose(1, 2).flatten(1) @ w_o.flatten(0, 1)
    if c.plus == "x":
        y = y + x
    if c.returned == "the old caches":
        return y, past_k, past_v
    if c.returned == "the new ones alone":
        return y, key.unsqueeze(-2), value.unsqueeze(-2)
    return y, k, v


def _grown(past: Tensor, new: Tensor, how: str) -> Tensor:
    """A cache with the new entry."""
    entry = new.unsqueeze(-2)
    if how == "new in front":
        return torch.cat([entry, past], dim=-2)
    kept = {"without the oldest": past[..., 1:, :], "without the newest": past[..., :-1, :]}.get(how, past)
    return torch.cat([kept, entry], dim=-2)


SIZES = {"batch": 2, "past": 5, "head": 3, "model_dim": 7, "qk_dim": 5, "v_dim": 11}


def checks(*, shared: bool) -> tuple[tuple[Trial, ...], tuple[Probe, ...]]:
    """Trials and probes of a step, in which keys and values are `shared` by all heads or not."""
    heads = () if shared else ("head",)

    def step(draw: Draw, scale: float = 1.0, n_past: int | None = None) -> Case:
        root = draw["model_dim"] ** -0.5
        past = "past" if n_past is None else n_past
        args = (
            draw.normal("batch", "model_dim", scale=scale),
            draw.normal("batch", *heads, past, "qk_dim", scale=scale),
            draw.normal("batch", *heads, past, "v_dim"),
            draw.normal("head", "model_dim", "qk_dim", scale=root),
            draw.normal(*heads, "model_dim", "qk_dim", scale=root),
            draw.normal(*heads, "model_dim", "v_dim", scale=root),
            draw.normal("head", "v_dim", "model_dim", scale=draw["v_dim"] ** -0.5),
        )
        return Case(args)

    def change_first(case: Case, draw: Draw) -> None:
        first_sequence(case.with_args(*case.args[:3]), draw)

    def reorder(case: Case, draw: Draw) -> None:
        for cache in case.args[1:3]:
            cache.copy_(cache.flip(-2))

    trials = (
        Trial("one step", step, SIZES, variants=True),
        Trial("another step", step, {**SIZES, "batch": 3, "past": 2, "head": 5, "v_dim": 2}, variants=True),
        Trial("all of one width", step, {**SIZES, "model_dim": 6, "head": 3, "qk_dim": 2, "v_dim": 2}),
        Trial("as many sequences as heads", step, {**SIZES, "batch": 3}),
        Trial("as many positions as heads", step, {**SIZES, "past": 3}),
        Trial("keys as wide as values", step, {**SIZES, "v_dim": 5}),
        Trial("batch of one", step, {**SIZES, "batch": 1}),
        Trial("one head", step, {**SIZES, "head": 1}),
        Trial("an empty cache", lambda draw: step(draw, n_past=0), {**SIZES, "past": 1}),
        large_scores(lambda draw: step(draw, 15.0), SIZES, "large logits"),
    )
    probes = (
        Probe(
            "a neighbour in the batch has no say",
            changed(step, change_first),
            SIZES,
            says="sequence 0 was changed: sequence 1 may not move.",
        ),
        Probe(
            "the order of the cache has no say in y",
            changed(step, reorder),
            SIZES,
            says="the cached positions were put in another order: y may not move.",
        ),
    )
    return trials, probes
