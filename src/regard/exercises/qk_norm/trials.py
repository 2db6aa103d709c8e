"""Reference, calls and probes of `qk-norm`."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from regard.checking.trials import Case, Draw, Probe, Trial, changed, formula, parted
from regard.exercises.shared import given, norms
from regard.exercises.shared.attention import Choices, attended, future


def reference(
    case: Case,
    *,
    normed: str = "norm(q, q_weight), norm(k, k_weight), v",
    order: str = "taken(*normed(q, k, v))",
    scaled_by: str = "scores / scale",
    **choices: str,
) -> Tensor:
    """Causal attention of normed queries and keys."""
    q, k, v, q_weight, k_weight = case.args
    of_norm, of_attention = parted(choices, norms.FORMULAS)
    c, eps = Choices(**of_attention), case.kwargs.get("eps", 1e-6)
    names = {
        "norm": lambda x, weight: norms.normed(x, weight, eps, of_norm),
        "q_weight": q_weight,
        "k_weight": k_weight,
    }
    steps = {
        "normed": lambda q, k, v: formula(normed, q=q, k=k, v=v, **names),
        "taken": partial(given.taken, c),
    }
    q, k, v = formula(order, q=q, k=k, v=v, **steps)
    return attended(c, q, k, v, lambda scores: future(scores, True, c), scaled=scaled_by, eps=eps)[0]


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


TRIALS = (
    *given.trials(call),
    Trial("tiny queries and keys", tiny, given.SIZES, grad=False),
    Trial("another eps", another_eps, given.SIZES),
)

LONGER = "all queries were made three times as long: nothing may move."
LENGTHENED = changed(call, lambda case, draw: case.args[0].mul_(3.0))

PROBES = (
    *given.causal_probes(call, given.SIZES),
    Probe("the length of a query has no say", LENGTHENED, given.SIZES, says=LONGER),
)
