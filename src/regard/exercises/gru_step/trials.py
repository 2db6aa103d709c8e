"""Reference, calls and probes of `gru-step`."""

from __future__ import annotations

from torch import Tensor

from regard.checking.trials import Case, Draw, Trial
from regard.exercises.shared.recurrent import Given, gated

FORMULAS = {
    "gates": "torch.sigmoid",
    "candidate": "torch.tanh",
    "reset_by": "of_r",
    "reset_sees": "h",
    "r": "gates(total(reset_by, reset_sees))",
    "update_by": "of_z",
    "update_sees": "h",
    "keeps": "gates(total(update_by, update_sees))",
    "z": "1 - keeps if update == 'takes' else keeps",
    "of_x": "terms(of_h, h)[0]",
    "whole": "terms(of_h, h)[1]",
    "b": "terms(of_h, h)[2]",
    "reset": "lambda r: r * whole if reset_at == 'after' else terms(of_h, r * h)[1]",
    "new": "candidate(of_x + reset(r) + b)",
    "mix": "z * h + (1 - z) * new",
}


def reference(case: Case, *, update: str = "keeps", reset: str = "before", **choices: str) -> Tensor:
    """The new state."""
    new: Tensor = gated(FORMULAS, "zrh", choices, *case.args, update=update, reset_at=reset)
    return new


GIVEN = Given(n_state=1, n_gate=3)


def large_state(draw: Draw) -> Case:
    """A state that no tanh gives, which shows what the gates do to it."""
    case = GIVEN.step(draw)
    case.args[1].mul_(4)
    return case


TRIALS = (*GIVEN.step_trials(), Trial("a large state", large_state, {"input": 3, "hidden": 7}))
