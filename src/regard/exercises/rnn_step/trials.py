"""Reference, calls and probes of `rnn-step`."""

from __future__ import annotations

from torch import Tensor

from regard.checking.trials import Case, Draw, Probe, Trial
from regard.exercises.shared.recurrent import RNN


def reference(case: Case, **choices: str) -> Tensor:
    """The new state."""
    return RNN(**choices)(*case.args)


def step(draw: Draw) -> Case:
    return Case(
        (
            draw.normal("input"),
            draw.uniform("hidden", low=-1.0, high=1.0),
            draw.normal("input", "hidden", scale=0.6 / draw["input"] ** 0.5),
            draw.normal("hidden", "hidden", scale=0.9 / draw["hidden"] ** 0.5),
            draw.normal("hidden", scale=0.4),
        )
    )


def no_history(draw: Draw) -> Case:
    case = step(draw)
    x_t, h_prev, *weights = case.args
    return case.with_args(x_t, h_prev * 0, *weights)


def state_changed(draw: Draw) -> tuple[Case, ...]:
    base = step(draw)
    x_t, h_prev, W_x, W_h, b = base.args
    only_first = W_h.clone()
    only_first[:, 1:] = 0  # the state reaches the first unit only
    base = base.with_args(x_t, h_prev, W_x, only_first, b)
    return base, base.with_args(x_t, h_prev.flip(0) * 1.5, W_x, only_first, b)


TRIALS = (
    Trial("a step", step, {"input": 3, "hidden": 5}, variants=True),
    Trial("more inputs than units", step, {"input": 7, "hidden": 2}),
    Trial("as many inputs as units", step, {"input": 3, "hidden": 3}),
    Trial("one unit", step, {"input": 2, "hidden": 1}),
    Trial("a state of zeros", no_history, {"input": 3, "hidden": 5}),
)

PROBES = (
    Probe(
        "the state acts through W_h",
        state_changed,
        {"input": 3, "hidden": 5},
        says="W_h leads from the state to unit 0 only: the other units may not move with it.",
    ),
)
