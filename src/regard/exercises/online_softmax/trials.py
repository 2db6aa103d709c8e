"""Reference, calls and probes of `online-softmax`."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from regard.checking.trials import Case, Draw, Probe, Trial, changed
from regard.exercises.online_softmax.drive import drive
from regard.exercises.shared.online import online_step, start


def reference(case: Case, **choices: str) -> Any:
    """The state after all blocks, or average and log-sum-exp."""
    return drive(partial(online_step, choices), *case.args)


def blocks(draw: Draw, *sizes: int) -> Case:
    pairs: list[Any] = [(draw.normal("query", size, scale=2.0), draw.normal(size, "dim")) for size in sizes]
    return Case((None, *pairs))


def one(draw: Draw) -> Case:
    case = blocks(draw, draw["key"])
    return case.with_args(start(case.args[1][0], draw["dim"]), *case.args[1:])


def several(draw: Draw) -> Case:
    """From the state after another block."""
    case = blocks(draw, draw["key"], 3, 2, 5)
    scores, values = case.args[1]
    return case.with_args(online_step({}, *start(scores, draw["dim"]), scores, values), *case.args[2:])


def averaged(draw: Draw) -> Case:
    return blocks(draw, draw["key"], 3, 1, 5)


def rising(draw: Draw) -> Case:
    """Each block's scores are far above those before it; then far below."""
    case = blocks(draw, draw["key"], 3, 4, 2)
    for (scores, _), shift in zip(case.args[1:], (-300.0, 0.0, 300.0, -200.0), strict=True):
        scores.add_(shift)
    return case


def hidden(draw: Draw) -> Case:
    """Row 0 sees nothing in the first two blocks, row 1 nothing at all."""
    case = blocks(draw, draw["key"], 3, 2, 5)
    case = case.with_args(start(case.args[1][0], draw["dim"]), *case.args[1:])
    for scores, _ in case.args[1:3]:
        scores[0] = -torch.inf
    for scores, _ in case.args[1:]:
        scores[1:2] = -torch.inf
    return case


def change_row(case: Case, draw: Draw) -> None:
    for scores, _ in case.args[1:]:
        scores[0] += 1.5 * torch.arange(scores.shape[1])


SIZES = {"query": 3, "key": 4, "dim": 5}
ALONE = "the scores of query 0 were changed: the others may not move."
LARGE = "Scores of 300 must not make exp infinite, nor lose what came before: m is the largest of all so far."

TRIALS = (
    Trial("the state after one block", one, SIZES, grad=False),
    Trial("the state after several blocks", several, SIZES, grad=False),
    Trial("the average of several blocks", averaged, SIZES, variants=True),
    Trial("one score at a time", lambda draw: blocks(draw, *[1] * draw["key"]), SIZES),
    Trial("one query", averaged, {**SIZES, "query": 1}),
    Trial("all sizes alike", several, dict.fromkeys(SIZES, 5), grad=False),
    Trial("rows that see nothing", hidden, SIZES, grad=False),
    Trial("blocks far above one another", rising, SIZES, grad=False, kind="fragile", says=LARGE),
)

PROBES = (Probe("a query stands alone", changed(several, change_row), SIZES, says=ALONE),)
