"""Reference, calls and probes of `mha-step`."""

from __future__ import annotations

from regard.checking.trials import Case, Draw
from regard.exercises.shared.steps import Choices, Step, probes, stepped, trials


def reference(case: Case, **choices: str) -> Step:
    """The output of the token, and both caches with it."""
    return stepped(Choices(**choices), case, shared=False)


def make(draw: Draw) -> Case:
    return Case(
        (
            draw.normal("batch", "model_dim"),
            draw.normal("batch", "head", "past", "qk_dim"),
            draw.normal("batch", "head", "past", "v_dim"),
            draw.normal("head", "model_dim", "qk_dim", scale=draw["model_dim"] ** -0.5),
            draw.normal("head", "model_dim", "qk_dim", scale=draw["model_dim"] ** -0.5),
            draw.normal("head", "model_dim", "v_dim", scale=draw["model_dim"] ** -0.5),
            draw.normal("head", "v_dim", "model_dim", scale=draw["v_dim"] ** -0.5),
        )
    )


TRIALS = trials(make)

PROBES = probes(make)
