"""Reference, calls and probes of `lstm-step`."""

from __future__ import annotations

from torch import Tensor

from regard.checking.trials import Case, Draw, Trial
from regard.exercises.shared.recurrent import Given, lstm_step


def reference(case: Case, **choices: str) -> tuple[Tensor, ...]:
    """The new hidden state and cell."""
    return lstm_step(choices, *case.args)


GIVEN = Given(n_state=2, n_gate=4)


def remembering(draw: Draw) -> Case:
    """The forget gate is open and the input gate shut: the cell stays."""
    case = GIVEN.step(draw)
    for index, value in ((5, 9.0), (8, -9.0)):  # b_f and b_i
        case.args[index].fill_(value)
    return case


TRIALS = (
    *GIVEN.step_trials(),
    Trial("forget gate open, input gate shut", remembering, {"input": 3, "hidden": 5}),
)
