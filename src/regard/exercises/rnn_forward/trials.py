"""Reference, calls and probes of `rnn-forward`."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Probe, Trial
from regard.exercises.shared.recurrent import RNN, Loop, stacked


def reference(
    case: Case,
    *,
    start: str = "as given",
    carried: str = "the last state",
    inputs: str = "in order",
    rows: str = "after each input",
    short: str = "as they are",
    **choices: str,
) -> Tensor:
    """The states of all steps."""
    x, h, *weights = case.args
    step = RNN(**choices)
    first = torch.zeros_like(h) if start == "zeros" else h
    if carried == "the sum":
        sums = Loop(start, carried, inputs, rows)(
            lambda row, state: replace(step, activation="none")(row, state, *weights), x, first
        )
        return torch.tanh(torch.stack(sums))
    states = Loop(start, carried, inputs, rows)(lambda row, state: step(row, state, *weights), x, first)
    return stacked(states, len(x), h, short)


def sequence(draw: Draw) -> Case:
    x, h = draw.normal("step", "input"), draw.uniform("hidden", low=-0.9, high=0.9)
    weights = draw.normal("input", "hidden", scale=0.5), draw.normal("hidden", "hidden", scale=0.5)
    return Case((x, h, *weights, draw.normal("hidden", scale=0.5)))


def from_zeros(draw: Draw) -> Case:
    x, _, *weights = sequence(draw).args
    return Case((x, torch.zeros(draw["hidden"]), *weights))


def future_changed(draw: Draw) -> tuple[Case, ...]:
    base = sequence(draw)
    x = base.args[0].clone()
    x[draw["step"] // 2] += 1.0
    return base, base.with_args(x, *base.args[1:])


def start_changed(draw: Draw) -> tuple[Case, ...]:
    base = sequence(draw)
    x, h, *weights = base.args
    return base, base.with_args(x, -h, *weights)


TRIALS = (
    Trial("a sequence", sequence, {"step": 7, "input": 3, "hidden": 5}, variants=True),
    Trial("one step", sequence, {"step": 1, "input": 3, "hidden": 5}, variants=True),
    Trial("two steps", sequence, {"step": 2, "input": 5, "hidden": 3}),
    Trial("as many steps as inputs and hidden units", sequence, {"step": 3, "input": 3, "hidden": 3}),
    Trial("one input, one hidden unit", sequence, {"step": 5, "input": 1, "hidden": 1}),
    Trial("from a state of zeros", from_zeros, {"step": 5, "input": 2, "hidden": 3}),
)

PROBES = (
    Probe(
        "the future has no say",
        future_changed,
        {"step": 7, "input": 3, "hidden": 5},
        says="the input of step 3 was changed: states before it may not move, that of step 3 must.",
    ),
    Probe(
        "the first state is felt",
        start_changed,
        {"step": 3, "input": 2, "hidden": 5},
        says="h0 was changed: the states must move.",
    ),
)
