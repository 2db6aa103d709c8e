"""Reference, calls and probes of `lstm-forward`."""

from __future__ import annotations

from typing import Any

from regard.checking.trials import Case, parted
from regard.exercises.shared.recurrent import IN_LOOP, LOOP, Given, looped, lstm_step


def reference(case: Case, **choices: str) -> Any:
    """The hidden states and the cells of all steps."""
    x, h, c, *weights = case.args
    of_loop, of_step = parted(choices, {**LOOP, **IN_LOOP})
    return looped(lambda row, h, c: lstm_step(of_step, row, h, c, *weights), x, (h, c), of_loop)


GIVEN = Given(n_state=2, n_gate=4)
TRIALS = GIVEN.loop_trials()
PROBES = GIVEN.loop_probes()
