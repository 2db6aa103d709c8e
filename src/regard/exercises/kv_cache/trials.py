"""Reference, calls and probes of `kv-cache`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Trial
from regard.exercises.shared import attention
from regard.exercises.shared.attention import Layer, attended, future
from regard.exercises.shared.given import causal_probes
from regard.exercises.shared.lengths import large_scores


@dataclass(frozen=True)
class Choices(attention.Choices):
    """Attention, what a piece sees and what is kept of it."""

    sees: str = "all up to itself"
    cache: str = "new behind"
    kept: str = "keys and values"


def reference(case: Case, **choices: str) -> tuple[Tensor, Tensor, Tensor]:
    """The outputs of all pieces, and the cache after the last."""
    c, (x, sizes, *other) = Choices(**choices), case.args
    pieces = [*x.split(sizes, dim=1)[: -len(other) or None], *other]
    layer, outputs, cache = Layer(case.weights, case.init[1]), [], None
    for piece in pieces:
        y, cache = read(c, layer, piece, cache)
        outputs.append(y)
    assert cache is not None
    return torch.cat(outputs, 1), *cache


def read(
    c: Choices, layer: Layer, x: Tensor, cache: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """One piece's output, and the cache with it."""
    q, k, v = layer.projected(c, x, x, x)
    root = q.shape[-1] ** 0.5
    k = k / root if c.kept in ("scaled keys", "keys scaled once") else k
    # The queries undo the scale that comes later, where the keys have it.
    q = q * root if c.kept in ("keys scaled once", "keys scaled with each call") else q
    past_k, past_v = cache or (k[:, :, :0], v[:, :, :0])
    old_v = past_k if c.kept == "cached keys as values" else past_v
    all_k = grown(past_k, k, c.cache.removeprefix("keys: "))
    all_v = grown(old_v, k if c.kept == "keys twice" and cache else v, c.cache.removeprefix("values: "))
    all_k = all_k / root if c.kept == "keys scaled with each call" else all_k
    n_past = 0 if c.sees == "its piece" else past_k.shape[2]
    seen_k, seen_v = (k, v) if c.sees == "its piece" else (all_k, all_v)

    def hidden(scores: Tensor) -> Tensor | None:
        n_query, n_key = scores.shape[-2:]
        rows, keys = torch.arange(n_query)[:, None], torch.arange(n_key)
        if c.sees == "as many as are cached" and n_past:
            return (keys > n_past + rows) | (keys <= rows)
        if c.sees == "the whole piece" and n_past:
            return None
        table = future(scores.new_zeros(n_past + n_query, n_past + n_query), True, c)
        first = 0 if c.sees == "as if nothing were cached" else n_past
        return None if table is None else table[first : first + n_query, :n_key]

    heads, _, _ = attended(c, q, seen_k, seen_v, hidden, x.shape[-1])
    new = {"the last piece": (k, v), "the first piece": cache or (k, v)}.get(c.cache, (all_k, all_v))
    y = layer.leave(c, heads, queries=x, keys=x, values=x)
    return y, new[::-1] if c.kept == "in the other order" else new


def grown(past: Tensor, new: Tensor, how: str) -> Tensor:
    if how == "new in front":
        return torch.cat([new, past], 2)
    return torch.cat([past[:, :, new.shape[2] :] if how == "of one length" else past, new], 2)


def layer(draw: Draw, *sizes: int, scale: float = 1.0) -> Case:
    width = draw["head"] * draw["head_dim"]
    weights = {f"W_{letter}.weight": 1.5 * draw.weight(width, width) for letter in "qkvo"}
    x = draw.normal("batch", sum(sizes), width, scale=scale)
    return Case((x, list(sizes)), init=(width, draw["head"]), weights=weights)


def at_once(draw: Draw) -> Case:
    return layer(draw, draw["prompt"])


def one_by_one(draw: Draw) -> Case:
    return layer(draw, *[1] * draw["prompt"])


def prompt_first(draw: Draw) -> Case:
    return layer(draw, draw["prompt"], 1, 1, 1)


def in_pieces(draw: Draw) -> Case:
    return layer(draw, draw["prompt"], 3, 2, 4)


def two_ends(draw: Draw) -> Case:
    case = layer(draw, draw["prompt"], 2, 3)
    return case.with_args(*case.args, draw.normal("batch", 3, draw["head"] * draw["head_dim"]))


SIZES = {"batch": 2, "prompt": 5, "head": 3, "head_dim": 2}

TRIALS = (
    Trial("read at once", at_once, SIZES, variants=True),
    Trial("a prompt, then one by one", prompt_first, SIZES, variants=True),
    Trial("in pieces of several positions", in_pieces, {**SIZES, "head": 2, "head_dim": 5}, variants=True),
    Trial("one by one from the beginning", one_by_one, SIZES),
    Trial("as many sequences as heads", in_pieces, {**SIZES, "batch": 3}),
    Trial("batch of one", in_pieces, {**SIZES, "batch": 1}),
    Trial("one head", in_pieces, {**SIZES, "head": 1, "head_dim": 3}),
    Trial(
        "two texts go on from one cache",
        two_ends,
        SIZES,
        says="A piece was read, then another one with the cache from before it, which must be as it was.",
    ),
    large_scores(lambda draw: layer(draw, draw["prompt"], 1, 1, scale=20.0), SIZES),
)

PROBES = causal_probes(in_pieces, SIZES)
