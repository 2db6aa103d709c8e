"""Reference, calls and probes of `lstm-forward`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Probe, Trial
from regard.exercises.shared.recurrent import LSTM, Loop, lstm_weights, stacked

Pair = tuple[Tensor, Tensor]


def reference(
    case: Case,
    *,
    start: str = "as given",
    carried: str = "the last state",
    inputs: str = "in order",
    rows: str = "after each input",
    short: str = "as they are",
    returned: str = "all states",
    **choices: str,
) -> Any:
    """The hidden states and the cells of all steps."""
    x, h, c, *weights = case.args
    zeros = torch.zeros_like(h)
    first = {
        "zeros": (zeros, zeros),
        "a hidden state of zeros": (zeros, c),
        "a cell of zeros": (h, zeros),
        "swapped": (c, h),
    }.get(start, (h, c))

    def step(row: Tensor, state: Pair) -> Pair:
        h_prev, c_prev = state
        if carried == "the cell alone":
            h_prev = first[0]
        if carried == "the hidden state alone":
            c_prev = first[1]
        new = LSTM(**choices)(row, h_prev, c_prev, *weights)
        return new[::-1] if carried == "swapped" else new

    states = Loop(start, carried, inputs, rows)(step, x, first)
    table = stacked([state[0] for state in states], len(x), h, short)
    cells = stacked([state[1] for state in states], len(x), h, short)
    if returned == "as torch":
        return table, states[-1]
    return table, cells[-1] if returned == "the last cell" else cells


def sequence(draw: Draw) -> Case:
    x, h, c = draw.normal("step", "input"), draw.uniform("hidden", low=-0.9, high=0.9), draw.normal("hidden")
    return Case((x, h, c, *lstm_weights(draw)))


def from_zeros(draw: Draw) -> Case:
    x, _, _, *weights = sequence(draw).args
    return Case((x, torch.zeros(draw["hidden"]), torch.zeros(draw["hidden"]), *weights))


def future_changed(draw: Draw) -> tuple[Case, ...]:
    base = sequence(draw)
    x = base.args[0].clone()
    x[draw["step"] // 2] += 1.0
    return base, base.with_args(x, *base.args[1:])


def starts_changed(draw: Draw) -> tuple[Case, ...]:
    base = sequence(draw)
    x, h, c, *weights = base.args
    return base, base.with_args(x, -h, c, *weights), base.with_args(x, h, -c, *weights)


TRIALS = (
    Trial("a sequence", sequence, {"step": 7, "input": 3, "hidden": 5}, variants=True),
    Trial("one step", sequence, {"step": 1, "input": 3, "hidden": 5}, variants=True),
    Trial("two steps", sequence, {"step": 2, "input": 5, "hidden": 3}),
    Trial("as many steps as inputs and hidden units", sequence, {"step": 3, "input": 3, "hidden": 3}),
    Trial("one input, one hidden unit", sequence, {"step": 5, "input": 1, "hidden": 1}),
    Trial("from states of zeros", from_zeros, {"step": 5, "input": 2, "hidden": 3}),
)

PROBES = (
    Probe(
        "the future has no say",
        future_changed,
        {"step": 7, "input": 3, "hidden": 5},
        says="the input of step 3 was changed: states before it may not move, those of step 3 must.",
    ),
    Probe(
        "both first states are felt",
        starts_changed,
        {"step": 3, "input": 2, "hidden": 5},
        says="h0, then c0 was changed: the states must move.",
    ),
)
