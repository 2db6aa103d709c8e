"""Reference, calls and probes of `tiled-attention`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Probe, Trial, changed, formula, parted, worked
from regard.exercises.shared import attention, given, online

BLOCK = {
    "cut": "lambda x: x[:, :, first : first + block]",
    "keys": "cut(k)",
    "values": "cut(v)",
    "place": "first + torch.arange(keys.shape[2])",
    "hides": "asked & (place > row)",
    "scale": "dim**0.5",
    "scores": "(q @ keys.mT / scale).masked_fill(hides, -torch.inf)",
    "part": "scores.softmax(-1).nan_to_num(0.0) @ values",
    "result": "scores, values, part, (~hides).any(-1, keepdim=True)",
}


def reference(
    case: Case, *, tail: str = "range(0, n, block)", end: str = "o / l[..., None]", **choices: str
) -> Tensor:
    """Attention, block by block."""
    of_block, of_step, sources = parted(choices, BLOCK, online.FORMULAS)
    block, asked = case.args[3], bool(case.kwargs.get("causal", False))
    q, k, v = given.taken(attention.Choices(**sources), *case.args[:3])
    _, n_head, n, dim = q.shape
    names = {"q": q, "k": k, "v": v, "n": n, "block": block, "n_head": n_head, "dim": dim, "asked": asked}
    state, parts, seen, row = online.start(q, v.shape[-1]), [], torch.zeros(n, 1), torch.arange(n)[:, None]
    for first in formula(tail, n=n, block=block):
        scores, values, part, shown = worked(BLOCK, of_block, first=first, row=row, **names)
        state = online.online_step(of_step, *state, scores, values)
        parts.append(part)
        seen = seen + shown
    if not parts:
        raise ValueError("no block is whole")
    result: Tensor = formula(end, parts=parts, seen=seen, l=state[1], o=state[2])
    return result


def call(draw: Draw, scale: float = 1.5, **kwargs: Any) -> Case:
    case = given.heads(draw, draw["block"], scale=scale)
    return Case(case.args, kwargs)


def causal(draw: Draw, scale: float = 1.5) -> Case:
    return call(draw, scale, causal=True)


def rising(draw: Draw) -> Case:
    """Scores that grow from block to block beyond what exp can hold."""
    case = causal(draw)
    q, k, *_ = case.args
    q.abs_()
    k.copy_(k / 10 + 60.0 * torch.arange(draw["position"])[:, None])
    return case


def two_blocks(sizes: Mapping[str, int]) -> int:
    """Room for scores and values of two blocks; the table of one head alone would be larger."""
    rows = sizes["batch"] * sizes["head"] * sizes["position"]
    return 2 * rows * max(sizes["block"], sizes["head_dim"])


SIZES = {**given.SIZES, "block": 3}
LONG = {"batch": 1, "head": 2, "position": 97, "head_dim": 3, "block": 8}
TABLE = "The table of n x n is what tiles do without: multiply the queries with one block of keys at a time."
SEEN = "the last key was changed: every row must move."
LARGE = "Scores of several hundred must not make exp infinite: m is the largest of all so far."

TRIALS = (
    *given.trials(call, block=3),
    Trial("causal", causal, SIZES, variants=True),
    Trial("n is a multiple of the block", causal, {**SIZES, "position": 6}),
    Trial("the last block has one key", call, {**SIZES, "block": 2}),
    Trial("one key in a block", causal, {**SIZES, "block": 1}),
    Trial("a block as long as the sequence", causal, {**SIZES, "block": 7}),
    Trial("a block longer than the sequence", call, {**SIZES, "block": 11}),
    Trial("scores that grow", rising, SIZES, grad=False, kind="fragile", says=LARGE),
    Trial("a long sequence", causal, LONG, grad=False, most_numbers=two_blocks, says=TABLE),
)
CHANGED = changed(call, lambda case, draw: case.args[1][:, :, -1].mul_(-2.0))

PROBES = (
    *given.causal_probes(causal, SIZES),
    Probe("all keys are seen", CHANGED, SIZES, says=SEEN),
)
