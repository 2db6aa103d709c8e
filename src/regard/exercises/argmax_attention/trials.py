"""Reference, calls and probes of `argmax-attention`."""

from functools import partial

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Probe, Trial, changed, worked

FORMULAS = {"scores": "keys @ q", "wins": "scores.argmax()", "takes": "values[wins]"}


def reference(case: Case, **choices: str) -> Tensor:
    """The value of the key that wins."""
    q, keys, values = case.args
    value: Tensor = worked(FORMULAS, choices, q=q, keys=keys, values=values)
    return value


def one(draw: Draw, best: int | None = None, ahead: float = 1.0) -> Case:
    """Random keys, one of them made the best, ahead by so much that no rounding changes it."""
    q = draw.normal("d") + 0.5
    keys = draw.normal("m", "d")
    best = int(draw.integers(0, draw["m"] - 1)) if best is None else best % draw["m"]
    scores = keys @ q
    keys[best] += q * (scores.max() - scores[best] + ahead) / q.square().sum().clamp(min=1e-3)
    return Case((q, keys, draw.normal("m", "v")))


def uneven(draw: Draw) -> Case:
    """The longest key, the nearest, the best aligned and the most similar are different ones."""
    q = torch.zeros(draw["d"])
    q[0], q[1] = 2.0, 1.0
    aside = torch.zeros(draw["d"])
    aside[2] = 3.0
    aligned, nearest, similar, longest = q * 0.1, q * 0.9, q * 2 + aside, q * -8
    return Case((q, torch.stack([aligned, nearest, similar, aside * 2, longest]), draw.normal(5, "v")))


def negative(draw: Draw) -> Case:
    """All dot products are negative: a maximum that starts at 0 finds none."""
    q = draw.normal("d").abs() + 0.5
    keys = -draw.normal("m", "d").abs() - 0.5
    keys[-1] *= 0.1
    return Case((q, keys, draw.normal("m", "v")))


def change_losers(case: Case, draw: Draw) -> None:
    q, keys, values = case.args
    scores = keys @ q
    values[scores < scores.max()] += 2.0


TRIALS = (
    Trial("one query", one, {"d": 3, "m": 7, "v": 5}, variants=True),
    Trial("as many keys as dimensions", one, {"d": 5, "m": 5, "v": 5}, variants=True),
    Trial("as many values as keys", one, {"d": 2, "m": 3, "v": 3}),
    Trial("the first key is best", partial(one, best=0), {"d": 11, "m": 13, "v": 2}),
    Trial("the last key is best", partial(one, best=-1), {"d": 2, "m": 3, "v": 7}),
    Trial("a close second", partial(one, ahead=0.1), {"d": 5, "m": 23, "v": 3}),
    Trial("another close second", partial(one, ahead=0.1), {"d": 13, "m": 17, "v": 2}),
    Trial("keys of unequal length", uneven, {"d": 5, "v": 3}),
    Trial("negative scores", negative, {"d": 3, "m": 5, "v": 2}),
    Trial("one key", one, {"d": 3, "m": 1, "v": 2}),
    Trial("values of one number", one, {"d": 3, "m": 5, "v": 1}),
)

PROBES = (
    Probe(
        "only the winner has a say",
        changed(one, change_losers, lambda case, draw: case.args[0].mul_(3.0)),
        {"d": 3, "m": 7, "v": 5},
        says="the values of all other keys were changed, then the query made longer: nothing may move.",
    ),
)
