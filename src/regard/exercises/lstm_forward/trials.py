"""Reference, calls and probes of `lstm-forward`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.checking.trials import Case
from regard.exercises.shared.recurrent import LSTM, Given, Loop

Pair = tuple[Tensor, Tensor]


def reference(case: Case, *, returned: str = "all states", **choices: str) -> Any:
    """The hidden states and the cells of all steps."""
    loop, of_step = Loop.of(choices)
    x, h, c, *weights = case.args
    zeros = torch.zeros_like(h)
    first = {
        "zeros": (zeros, zeros),
        "a hidden state of zeros": (zeros, c),
        "a cell of zeros": (h, zeros),
        "swapped": (c, h),
    }.get(loop.start, (h, c))

    def step(row: Tensor, state: Pair) -> Pair:
        h_prev, c_prev = state
        if loop.carried == "the cell alone":
            h_prev = first[0]
        if loop.carried == "the hidden state alone":
            c_prev = first[1]
        new = LSTM(**of_step)(row, h_prev, c_prev, *weights)
        return new[::-1] if loop.carried == "swapped" else new

    states = loop(step, x, first)
    table, cells = (loop.table([state[part] for state in states], len(x), h) for part in (0, 1))
    if returned == "as torch":
        return table, states[-1]
    return table, cells[-1] if returned == "the last cell" else cells


GIVEN = Given(n_state=2, n_gate=4)
TRIALS = GIVEN.loop_trials()
PROBES = GIVEN.loop_probes()
