"""What `mha-step` and `mqa-step` share: reference, calls and probes of one step with a cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Probe, Trial
from regard.exercises.shared.attention import SOFTMAXES


@dataclass(frozen=True)
class Choices:
    """The decisions of one step of attention with a cache."""

    scale: str = "none"
    query_by: str = "q"
    key_by: str = "k"
    queries: str = "of each head"
    keys: str = "of each head"
    cache: str = "new behind"
    new_k: str = "the key"
    new_v: str = "the value"
    sees: str = "the new cache"
    softmax: str = "over keys"
    heads: str = "summed"
    plus: str = "nothing"
    returned: str = "the new caches"


Step = tuple[Tensor, Tensor, Tensor]


def stepped(c: Choices, case: Case, *, shared: bool) -> Step:
    """One token of attention (Shazeer 2019), in which keys and values are `shared` by all heads or not."""
    x, past_k, past_v, w_q, w_k, w_v, w_o = case.args
    by = {"q": w_q, "k": w_k}
    one = "bd,dk->bk" if shared else "bd,hdk->bhk"
    q = torch.einsum("bd,hdk->bhk", x, by[c.query_by])
    if c.queries != "of each head":
        q = (q.sum(1, keepdim=True) if c.queries == "summed" else q[:, :1]).expand_as(q)
    key, value = torch.einsum(one, x, by[c.key_by]), torch.einsum(one, x, w_v)
    k = _grown(past_k, key if c.new_k == "the key" else value, c.cache)
    v = _grown(past_v, value if c.new_v == "the value" else key, c.cache)
    seen_k = past_k if c.sees in ("the old cache", "the new value alone") else k
    seen_v = past_v if c.sees == "the old cache" else v
    if c.keys == "of the first head":
        seen_k = seen_k[:, :1].expand_as(seen_k)
    logits = torch.einsum("bhk,bnk->bhn", q, seen_k) if shared else torch.einsum("bhk,bhnk->bhn", q, seen_k)
    logits = logits / {
        "root": q.shape[-1] ** 0.5,
        "k": q.shape[-1],
        "the number of heads": q.shape[1],
        "root of the number of heads": q.shape[1] ** 0.5,
        "root of the number of positions": logits.shape[-1] ** 0.5,
        "root of the model's width": x.shape[-1] ** 0.5,
        "times the root of k": q.shape[-1] ** -0.5,
    }.get(c.scale, 1.0)
    weights = (
        torch.full_like(logits, 1 / logits.shape[-1])
        if c.softmax == "a mean"
        else SOFTMAXES[c.softmax](logits)
    )
    heads = (
        torch.einsum("bhn,bnv->bhv", weights, seen_v)
        if shared
        else torch.einsum("bhn,bhnv->bhv", weights, seen_v)
    )
    y = torch.einsum("bhv,hvd->bd", heads, w_o)
    if c.heads == "averaged":
        y = y / w_o.shape[0]
    elif c.heads == "the first":
        y = heads[:, 0] @ w_o[0]
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


def past_changed(make: Callable[[Draw], Case]) -> Callable[[Draw], tuple[Case, ...]]:
    """The first sequence's cache and token changed: the others may not move, nor may the old cache "
    "entries."""

    def changed(draw: Draw) -> tuple[Case, ...]:
        base = make(draw)
        args = [arg.clone() for arg in base.args]
        for arg in args[:3]:
            arg[0] = arg[0].flip(-1) + 1.0
        return base, base.with_args(*args)

    return changed


def empty_cache(make: Callable[[Draw], Case]) -> Callable[[Draw], Case]:
    """The first step, before which nothing is cached."""

    def emptied(draw: Draw) -> Case:
        base = make(draw)
        x, keys, values, *rest = base.args
        return base.with_args(x, keys[..., :0, :].clone(), values[..., :0, :].clone(), *rest)

    return emptied


def reordered(make: Callable[[Draw], Case]) -> Callable[[Draw], tuple[Case, ...]]:
    """The order of what is cached has no say in y."""

    def changed(draw: Draw) -> tuple[Case, ...]:
        base = make(draw)
        x, keys, values, *rest = base.args
        order = torch.arange(draw["past"]).flip(0)
        return base, replace(base, args=(x, keys[..., order, :], values[..., order, :], *rest))

    return changed


def large_logits(make: Callable[[Draw], Case]) -> Callable[[Draw], Case]:
    def enlarged(draw: Draw) -> Case:
        base = make(draw)
        x, keys, *rest = base.args
        return base.with_args(15.0 * x, 15.0 * keys, *rest)

    return enlarged


SIZES = {"batch": 2, "past": 5, "head": 3, "model_dim": 7, "qk_dim": 5, "v_dim": 11}


def trials(make: Callable[[Draw], Case]) -> tuple[Trial, ...]:
    """The trials of a step."""
    return (
        Trial("one step", make, SIZES, variants=True),
        Trial("another step", make, {**SIZES, "batch": 3, "past": 2, "head": 5, "v_dim": 2}, variants=True),
        Trial("all of one width", make, {**SIZES, "model_dim": 6, "head": 3, "qk_dim": 2, "v_dim": 2}),
        Trial("as many sequences as heads", make, {**SIZES, "batch": 3}),
        Trial("as many positions as heads", make, {**SIZES, "past": 3}),
        Trial("keys as wide as values", make, {**SIZES, "v_dim": 5}),
        Trial("batch of one", make, {**SIZES, "batch": 1}),
        Trial("one head", make, {**SIZES, "head": 1}),
        Trial("an empty cache", empty_cache(make), {**SIZES, "past": 1}),
        Trial(
            "large logits",
            large_logits(make),
            SIZES,
            grad=False,
            kind="fragile",
            says="exp of a large logit is infinite: subtract the row's maximum first, as torch.softmax does.",
        ),
    )


def probes(make: Callable[[Draw], Case]) -> tuple[Probe, ...]:
    """The perturbations of a step."""
    return (
        Probe(
            "a neighbour in the batch has no say",
            past_changed(make),
            SIZES,
            says="sequence 0 was changed: sequence 1 may not move.",
        ),
        Probe(
            "the order of the cache has no say in y",
            reordered(make),
            SIZES,
            says="the cached positions were put in another order: y may not move.",
        ),
    )
