"""Reference, calls and probes of `rnn-forward`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from regard.checking.trials import Case, parted
from regard.exercises.shared.recurrent import IN_LOOP, LOOP, Given, looped, rnn_step


def reference(case: Case, **choices: str) -> Any:
    """The states of all steps."""
    x, start, *weights = case.args
    of_loop, of_step = parted(choices, {**LOOP, **IN_LOOP})

    def total(row: Tensor, h: Tensor) -> Tensor:
        return rnn_step({**of_step, "activation": "lambda x: x"}, row, h, *weights)

    def step(row: Tensor, h: Tensor) -> tuple[Tensor]:
        return (rnn_step(of_step, row, h, *weights),)

    return looped(step, x, (start,), {"result": "tables[0]", **of_loop}, total=total)


GIVEN = Given(n_state=1, n_gate=1)
TRIALS = GIVEN.loop_trials()
PROBES = GIVEN.loop_probes()
