"""Reference, calls and probes of `qk-norm`."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Probe, Trial, changed, parted
from regard.exercises.shared import attention, given, norms
from regard.exercises.shared.attention import attended, future


def reference(
    case: Case, *, normed: str = "queries and keys", taken: str = "as they are normed", **choices: str
) -> Tensor:
    """Causal attention of normed queries and keys."""
    q, k, v, q_weight, k_weight = case.args
    of_norm, of_attention = parted(choices, norms.FORMULAS)
    c, eps = attention.Choices(**of_attention), case.kwargs.get("eps", 1e-6)
    if taken == "before the norm":
        q, k, v = given.taken(c, q, k, v)
    values = {"values too": k_weight, "values too, by no weight": torch.ones_like(k_weight)}
    if normed in values:
        v = norms.normed(v, values[normed], eps, of_norm)
    if normed not in ("keys", "scores", "nothing"):
        q = norms.normed(q, k_weight if normed == "by k_weight" else q_weight, eps, of_norm)
    if normed not in ("queries", "scores", "nothing"):
        k = norms.normed(k, q_weight if normed == "by q_weight" else k_weight, eps, of_norm)
    if taken == "as they are normed":
        q, k, v = given.taken(c, q, k, v)
    if normed == "scores":
        scores = q @ k.transpose(-2, -1)
        scores = scores / (scores.square().mean(-1, keepdim=True) + eps).sqrt()
        return torch.matmul(attention.weighed(scores, future(scores, True, c), c), v)
    return attended(c, q, k, v, lambda scores: future(scores, True, c))[0]


def call(draw: Draw, scale: float = 1.5) -> Case:
    weights = (draw.normal("head_dim", scale=0.5, mean=1.5) for _ in range(2))
    return given.heads(draw, *weights, scale=scale)


def tiny(draw: Draw) -> Case:
    """Rows so small that eps counts."""
    case = call(draw, scale=1e-3)
    case.args[1].mul_(1e-3)
    return case


def another_eps(draw: Draw) -> Case:
    case = call(draw)
    return Case(case.args, {"eps": 0.5})


LONGER = "all queries were made three times as long: nothing may move."

TRIALS = (
    *given.trials(call),
    Trial("tiny queries and keys", tiny, given.SIZES, grad=False),
    Trial("another eps", another_eps, given.SIZES),
)
LENGTHENED = changed(call, lambda case, draw: case.args[0].mul_(3.0))

PROBES = (
    *given.causal_probes(call, given.SIZES),
    Probe("the length of a query has no say", LENGTHENED, given.SIZES, says=LONGER),
)
