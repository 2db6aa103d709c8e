"""Reference, calls and probes of `tiled-attention`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Probe, Trial, changed
from regard.exercises.shared import attention, given
from regard.exercises.shared.online import Online, start


def reference(
    case: Case,
    *,
    tail: str = "shorter",
    hides: str = "the future",
    end: str = "divided",
    scale: str = "root",
    query_from: str = "queries",
    key_from: str = "keys",
    value_from: str = "values",
    **choices: str,
) -> Tensor:
    """Attention, block by block."""
    step, (q, k, v, block) = Online(**choices), case.args
    sources = attention.Choices(query_from=query_from, key_from=key_from, value_from=value_from)
    q, k, v = given.taken(sources, q, k, v)
    n, asked = q.shape[2], bool(case.kwargs.get("causal", False))
    root = q.shape[-1] ** 0.5
    divisor = {"none": 1.0, "root of the block": block**0.5, "width": root**2, "times the root": 1 / root}
    divisor |= {"root of the number of heads": q.shape[1] ** 0.5, "root of n": n**0.5}
    state, parts, row = start(q, v.shape[-1]), [], torch.arange(n)[:, None]
    seen = torch.zeros(n, 1)
    for first in range(0, n - n % block if tail == "left out" else n, block):
        first = max(0, n - block) if tail == "moved back" and first + block > n else first
        keys, values = (x[:, :, first : first + block] for x in (k, v))
        missing = block - keys.shape[2] if tail == "zeros" else 0
        if missing:
            keys, values = (torch.nn.functional.pad(x, (0, 0, 0, missing)) for x in (keys, values))
        place = torch.arange(keys.shape[2]) + (0 if hides == "counted from 0" else first)
        hidden = {"itself too": place >= row, "whole blocks": place // block > row // block}.get(
            hides, place > row
        )
        if not (asked or hides == "always") or hides == "nothing":
            hidden = torch.zeros_like(hidden)
        scores = (q @ keys.transpose(-2, -1) / divisor.get(scale, root)).masked_fill(hidden, -torch.inf)
        seen = seen + (~hidden).any(-1, keepdim=True)
        parts.append(scores.softmax(-1).nan_to_num(0.0) @ values)
        largest, total, out = state = step(state, scores, values)
        if end == "divided in every block":
            state = (largest, total, out / total[..., None])
    if not parts:
        raise ValueError("no block is whole")
    _, total, out = state
    sums = torch.stack(parts).sum(0)
    means = {"mean of blocks": sums / len(parts), "mean of seen blocks": sums / seen}
    return {"not divided": out, "divided in every block": out, **means}.get(end, out / total[..., None])


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

PROBES = (
    *given.causal_probes(causal, SIZES),
    Probe(
        "all keys are seen",
        changed(call, lambda case, draw: case.args[1][:, :, -1].mul_(-2.0)),
        SIZES,
        says="the last key was changed: every row must move.",
    ),
)
