"""Reference, calls and probes of `lstm-step`."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Trial
from regard.exercises.shared.recurrent import LSTM, lstm_weights


def reference(case: Case, **choices: str) -> tuple[Tensor, Tensor]:
    """The new hidden state and cell."""
    return LSTM(**choices)(*case.args)


def step(draw: Draw) -> Case:
    x, h, c = draw.normal("input"), draw.uniform("hidden", low=-0.9, high=0.9), draw.normal("hidden")
    return Case((x, h, c, *lstm_weights(draw)))


def at_rest(draw: Draw) -> Case:
    case = step(draw)
    nothing = torch.zeros(draw["hidden"])
    return case.with_args(case.args[0], nothing, nothing.clone(), *case.args[3:])


def remembering(draw: Draw) -> Case:
    """The forget gate is open and the input gate shut: the cell stays."""
    x, h, c, *weights = step(draw).args
    for index, value in ((2, 9.0), (5, -9.0)):  # b_f and b_i
        weights[index] = torch.full_like(weights[index], value)
    return Case((x, h, c, *weights))


TRIALS = (
    Trial("one step", step, {"input": 3, "hidden": 5}, variants=True),
    Trial("more inputs than hidden units", step, {"input": 7, "hidden": 2}, variants=True),
    Trial("as many inputs as hidden units", step, {"input": 5, "hidden": 5}),
    Trial("one input, one hidden unit", step, {"input": 1, "hidden": 1}),
    Trial("the first step, from zeros", at_rest, {"input": 3, "hidden": 5}),
    Trial("forget gate open, input gate shut", remembering, {"input": 3, "hidden": 5}),
)
