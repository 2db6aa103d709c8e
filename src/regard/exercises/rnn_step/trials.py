"""Reference, calls and probes of `rnn-step`."""

from __future__ import annotations

from torch import Tensor

from regard.checking.trials import Case, Draw, Probe, changed
from regard.exercises.shared.recurrent import Given, rnn_step


def reference(case: Case, **choices: str) -> Tensor:
    """The new state."""
    return rnn_step(choices, *case.args)


GIVEN = Given(n_state=1, n_gate=1)


def one_unit_remembers(draw: Draw) -> Case:
    case = GIVEN.step(draw)
    case.args[3][:, 1:] = 0  # the state reaches the first unit only
    return case


TRIALS = GIVEN.step_trials()

SAYS = "W_h leads from the state to unit 0 only: the other units may not move with it."
CALLS = changed(one_unit_remembers, lambda case, draw: case.args[1].mul_(-1.5))

PROBES = (Probe("the state acts through W_h", CALLS, {"input": 3, "hidden": 5}, says=SAYS),)
