"""Reference, calls and probes of `kv-cache`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Trial, formula, parted, worked
from regard.exercises.kv_cache.drive import drive
from regard.exercises.shared.attention import Choices, Layer, attended
from regard.exercises.shared.given import causal_probes
from regard.exercises.shared.lengths import large_scores

FORMULAS = {
    "kept": "q, k, v",
    "q": "kept[0]",
    "k": "kept[1]",
    "v": "kept[2]",
    "past": "past_k, past_v",
    "all_k": "grown('keys', past[0], k)",
    "all_v": "grown('values', past[1], v)",
    "seen": "all_k, all_v",
    "key": "torch.arange(seen[0].shape[2])",
    "sees": "causal(key, n_past + row)",  # what is hidden; None where nothing is
    "heads": "attend(q, *seen, sees)",
    "stored": "all_k, all_v",
    "order": "stored",
    "result": "leave(heads), order",
}


def reference(case: Case, *, cache: str = "torch.cat([past, new], 2)", **choices: str) -> Any:
    """The outputs of all pieces, and the cache after the last."""
    of_piece, of_layer = parted(choices, FORMULAS)
    c, layer = Choices(**of_layer), Layer(case.weights, case.init[1])

    def causal(key: Tensor, query: Tensor) -> Tensor | None:
        hidden = formula(c.causal, asked=True, key=key, query=query)
        return hidden if isinstance(hidden, Tensor) else None

    def attend(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None) -> Tensor:
        return attended(c, q, k, v, lambda scores: hidden, case.init[0])[0]

    def grown(role: str, past: Tensor, new: Tensor) -> Any:
        return formula(cache, role=role, past=past, new=new)

    def read(x: Tensor, cached: tuple[Tensor, Tensor] | None) -> Any:
        q, k, v = layer.projected(c, x, x, x)
        past_k, past_v = cached or (k[:, :, :0], v[:, :, :0])
        names = {"q": q, "k": k, "v": v, "past_k": past_k, "past_v": past_v, "root": q.shape[-1] ** 0.5}
        steps = {"causal": causal, "attend": attend, "grown": grown}
        leave = partial(layer.leave, c, queries=x, keys=x, values=x)
        row, n_past = torch.arange(x.shape[1])[:, None], past_k.shape[2]
        return worked(FORMULAS, of_piece, **names, **steps, leave=leave, row=row, n_past=n_past)

    return drive(read, *case.args)


def layer(draw: Draw, *sizes: int, scale: float = 1.0) -> Case:
    width = draw["head"] * draw["head_dim"]
    weights = {f"W_{letter}.weight": 1.5 * draw.weight(width, width) for letter in "qkvo"}
    x = draw.normal("batch", sum(sizes), width, scale=scale)
    return Case((x, list(sizes)), init=(width, draw["head"]), weights=weights)


def pieces(*sizes: int) -> Callable[[Draw], Case]:
    """A prompt, then pieces of these sizes."""
    return lambda draw: layer(draw, draw["prompt"], *sizes)


def two_ends(draw: Draw) -> Case:
    case = layer(draw, draw["prompt"], 2, 3)
    return case.with_args(*case.args, draw.normal("batch", 3, draw["head"] * draw["head_dim"]))


SIZES = {"batch": 2, "prompt": 5, "head": 3, "head_dim": 2}
SEVERAL = pieces(3, 2, 4)
ENDS = "A piece was read, then another one with the cache from before it, which must be as it was."

TRIALS = (
    Trial("read at once", pieces(), SIZES, variants=True),
    Trial("a prompt, then one by one", pieces(1, 1, 1), SIZES, variants=True),
    Trial("in pieces of several positions", SEVERAL, {**SIZES, "head": 2, "head_dim": 5}, variants=True),
    Trial("one by one from the beginning", lambda draw: layer(draw, *[1] * draw["prompt"]), SIZES),
    Trial("as many sequences as heads", SEVERAL, {**SIZES, "batch": 3}),
    Trial("batch of one", SEVERAL, {**SIZES, "batch": 1}),
    Trial("one head", SEVERAL, {**SIZES, "head": 1, "head_dim": 3}),
    Trial("two texts go on from one cache", two_ends, SIZES, says=ENDS),
    large_scores(lambda draw: layer(draw, draw["prompt"], 1, 1, scale=20.0), SIZES),
)

PROBES = causal_probes(SEVERAL, SIZES)
