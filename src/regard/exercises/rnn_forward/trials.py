"""Reference, calls and probes of `rnn-forward`."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from regard.checking.trials import Case
from regard.exercises.shared.recurrent import RNN, Given, Loop


def reference(case: Case, *, stored: str = "the state", **choices: str) -> Tensor:
    """The states of all steps."""
    loop, of_step = Loop.of(choices)
    x, h, *weights = case.args
    sums = loop.carried == "the sum"
    step = replace(RNN(**of_step), activation="none") if sums else RNN(**of_step)
    first = torch.zeros_like(h) if loop.start == "zeros" else h
    states = loop(lambda row, state: step(row, state, *weights), x, first)
    if stored == "the sum":
        before = [first, *states[:-1]]
        states = [
            replace(step, activation="none")(row, h, *weights) for row, h in zip(x, before, strict=True)
        ]
    return torch.tanh(torch.stack(states)) if sums else loop.table(states, len(x), h)


GIVEN = Given(n_state=1, n_gate=1)
TRIALS = GIVEN.loop_trials()
PROBES = GIVEN.loop_probes()
