"""Reference, calls and probes of `online-softmax`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Probe, Trial, changed
from regard.exercises.shared.online import Online, start


def reference(case: Case, *, o: str = "a sum", **choices: str) -> tuple[Tensor, ...]:
    """The state after all blocks, or average and log-sum-exp."""
    step, (what, *blocks) = Online(**choices), case.args
    scores, values = blocks[0]
    state = start(scores, values.shape[1])
    for scores, values in blocks:
        largest, total, out = step(state, scores, values)
        if o == "divided":
            out = out / total[:, None]
        state = (largest, largest + total.log() if o == "log-sum-exp" else total, out)
    largest, total, out = state
    return state if what == "state" else (out / total[:, None], largest + total.log())


def blocks(draw: Draw, what: str, *sizes: int, scale: float = 2.0) -> Case:
    pairs: list[Any] = [(draw.normal("query", size, scale=scale), draw.normal(size, "dim")) for size in sizes]
    return Case((what, *pairs))


def one(draw: Draw) -> Case:
    return blocks(draw, "state", draw["key"])


def several(draw: Draw) -> Case:
    return blocks(draw, "state", draw["key"], 3, 2, 5)


def averaged(draw: Draw) -> Case:
    return blocks(draw, "result", draw["key"], 3, 1, 5)


def one_by_one(draw: Draw) -> Case:
    return blocks(draw, "result", *[1] * draw["key"])


def rising(draw: Draw) -> Case:
    """Each block's scores are far above those before it; then far below."""
    case = blocks(draw, "result", draw["key"], 3, 4, 2)
    for (scores, _), shift in zip(case.args[1:], (-300.0, 0.0, 300.0, -200.0), strict=True):
        scores.add_(shift)
    return case


def hidden(draw: Draw) -> Case:
    """Row 0 sees nothing in the first two blocks, row 1 nothing at all."""
    case = several(draw)
    for scores, _ in case.args[1:3]:
        scores[0] = -torch.inf
    for scores, _ in case.args[1:]:
        scores[1:2] = -torch.inf
    return case


def change_row(case: Case, draw: Draw) -> None:
    for scores, _ in case.args[1:]:
        scores[0] += 1.5 * torch.arange(scores.shape[1])


SIZES = {"query": 3, "key": 4, "dim": 5}
LARGE = "Scores of 300 must not make exp infinite, nor lose what came before: m is the largest of all so far."

TRIALS = (
    Trial("the state after one block", one, SIZES, grad=False),
    Trial("the state after several blocks", several, SIZES, grad=False),
    Trial("the average of several blocks", averaged, SIZES, variants=True),
    Trial("one score at a time", one_by_one, SIZES),
    Trial("one query", averaged, {**SIZES, "query": 1}),
    Trial("all sizes alike", several, dict.fromkeys(SIZES, 5), grad=False),
    Trial("rows that see nothing", hidden, SIZES, grad=False),
    Trial("blocks far above one another", rising, SIZES, grad=False, kind="fragile", says=LARGE),
)

PROBES = (
    Probe(
        "a query stands alone",
        changed(several, change_row),
        SIZES,
        says="the scores of query 0 were changed: the others may not move.",
    ),
)
