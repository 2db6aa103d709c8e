"""Reference, calls and probes of `gru-step`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Trial
from regard.recurrent.cells import GRUWeights, gru_step


def reference(case: Case, *, update: str = "keeps", reset: str = "before") -> Tensor:
    """Our own step; with the update gate negated it takes where it kept."""
    x, h, *weights = case.args
    if update == "takes":  # sigmoid(-a) = 1 - sigmoid(a)
        weights = [-weight for weight in weights[:3]] + weights[3:]
    return gru_step(x, h, GRUWeights(*weights), reset_after=reset == "after")


def step(draw: Draw) -> Case:
    shapes: dict[str, tuple[Any, ...]] = {
        "W": ("input", "hidden"),
        "U": ("hidden", "hidden"),
        "b": ("hidden",),
    }
    weights = [draw.normal(*shapes[kind], scale=0.8) for kind in "WUb" * 3]
    return Case((draw.normal("input"), draw.uniform("hidden", low=-0.9, high=0.9), *weights))


def at_rest(draw: Draw) -> Case:
    case = step(draw)
    return case.with_args(case.args[0], torch.zeros(draw["hidden"]), *case.args[2:])


def large_state(draw: Draw) -> Case:
    """A state that no tanh gives, which shows what the gates do to it."""
    case = step(draw)
    return case.with_args(case.args[0], draw.normal("hidden", scale=2.0), *case.args[2:])


TRIALS = (
    Trial("one step", step, {"input": 3, "hidden": 5}, variants=True),
    Trial("more inputs than hidden units", step, {"input": 7, "hidden": 2}, variants=True),
    Trial("as many inputs as hidden units", step, {"input": 5, "hidden": 5}),
    Trial("one input, one hidden unit", step, {"input": 1, "hidden": 1}),
    Trial("the first step, from zeros", at_rest, {"input": 3, "hidden": 5}),
    Trial("a large state", large_state, {"input": 3, "hidden": 7}),
)
