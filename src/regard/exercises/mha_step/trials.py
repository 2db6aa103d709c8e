"""Reference, calls and probes of `mha-step`."""

from __future__ import annotations

from torch import Tensor

from regard.checking.trials import Case, Draw
from regard.exercises.shared.steps import probes, trials
from regard.layers.steps import mha_step


def reference(case: Case, *, scale: str = "none") -> tuple[Tensor, Tensor, Tensor]:
    """Our own step; a scale is the same as smaller queries."""
    x, keys, values, w_q, w_k, w_v, w_o = case.args
    w_q = w_q if scale == "none" else w_q / w_q.shape[2] ** 0.5
    return mha_step(x, keys, values, w_q, w_k, w_v, w_o)


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
