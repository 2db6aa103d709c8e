"""Which operations of self-attention are nonlinear, found by feeding a x for x.

Scores and the weighted sum multiply two things that both depend on x: linear in each, not in both.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from regard.attention import ScoreRule, masked_softmax, weights
from regard.errors import plural
from regard.lab.spec import Lab
from regard.layers import MultiHeadAttention, merge_heads, split_heads

CLAIM = """Softmax is not the only nonlinear operation of self-attention: without it the layer is cubic in its
input, because scores and the weighted sum multiply what depends on it."""
PREDICTION = """With softmax removed f(a x) = a^3 f(x) exactly, scores have degree 2 and projections 1; with
softmax no power fits. Of the operations, 4 projections are linear and 3 for each head are not."""

DIM, LENGTH = 12, 7
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
DEGREES = {"query": 1, "key": 1, "value": 1, "scores": 2, "output": 3}
RULE = ScoreRule()


def _stages(layer: MultiHeadAttention, x: Tensor) -> dict[str, Tensor]:
    """The layer's intermediate results for an input x, its output with softmax and without."""
    q, k, v = (split_heads(project(x), layer.n_head) for project in (layer.query, layer.key, layer.value))
    scores = RULE.scores(q, k)
    output, usual = (layer.out(merge_heads(table @ v)) for table in (scores, weights(q, k, RULE)))
    return {"query": q, "key": k, "value": v, "scores": scores, "output": output, "with softmax": usual}


def _degree(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[float, float]:
    """The power p of f(a x) = a^p f(x) that fits best, and how far from it f is, relative to f."""
    scaled = {a: function(a * x) for a in FACTORS}
    logs = {a: math.log(a) for a in FACTORS}
    power = sum(logs[a] * math.log(scaled[a].norm()) for a in FACTORS) / sum(log**2 for log in logs.values())
    at_one = scaled[1.0]
    return power, max(float((scaled[a] / a**power - at_one).norm() / at_one.norm()) for a in FACTORS)


def _additive(function: Callable[..., Tensor], *arguments: Tensor) -> float:
    """How far f(x + y) is from f(x) + f(y), relative; 0 for a linear operation."""
    others = [torch.randn_like(argument) for argument in arguments]
    both = function(*(a + b for a, b in zip(arguments, others, strict=True)))
    apart = function(*arguments) + function(*others)
    return float((both - apart).norm() / both.norm())


def _operations(n_head: int, x: Tensor) -> list[float]:
    """How far every operation of the layer, as a function of its own inputs, is from linear.

    Projections act on all heads at once; scores, softmax and the weighted sum once for each head.
    """
    layer = MultiHeadAttention(DIM, n_head).double()
    distances = [_additive(project, x) for project in (layer.query, layer.key, layer.value, layer.out)]
    stages = _stages(layer, x)
    for head in range(n_head):
        q, k, v = (stages[name][:, head : head + 1] for name in ("query", "key", "value"))
        distances += [
            _additive(RULE.scores, q, k),
            _additive(lambda s: masked_softmax(s[:, 0])[:, None], RULE.scores(q, k)),
            _additive(torch.matmul, weights(q, k, RULE), v),
        ]
    return distances


@torch.no_grad()
def run(lab: Lab) -> None:
    x = torch.randn(3, LENGTH, DIM, dtype=torch.float64)
    layer = MultiHeadAttention(DIM, 3).double()
    for name, power in DEGREES.items():
        fitted, misfit = _degree(lambda x, name=name: _stages(layer, x)[name], x)  # type: ignore[misc]
        lab.exact(f"degree of {name}, no softmax", fitted)
        lab.below(f"without softmax, {name} has a degree", misfit, 1e-9)
        lab.equal(f"without softmax, {name} has degree {power}", fitted, power, rounding=1e-9)
    fitted, misfit = _degree(lambda x: _stages(layer, x)["with softmax"], x)
    lab.exact("degree that fits best, with softmax", fitted)
    lab.exact("misfit of the output with softmax, to its best power", misfit)
    lab.above("with softmax, no power fits", misfit, 0.01)
    fine = [2 ** (step / 4) for step in range(-8, 9)]
    scaled, plain = [_stages(layer, a * x) for a in fine], _stages(layer, x)
    sizes = {
        label: [float(stages[name].norm() / plain[name].norm()) for stages in scaled]
        for label, name in (("with softmax", "with softmax"), ("softmax removed", "output"))
    }
    ax = lab.draw.lines("f(a x) against a", fine, sizes, "a", "|f(a x)| / |f(x)|")
    lab.draw.predicted(fine, [a**3 for a in fine], "a³", 2)
    lab.draw.predicted(fine, fine, "a (linear)", 4)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    counts: dict[str, list[int]] = {"linear": [], "nonlinear": []}
    for n_head in (1, 3):
        distances = _operations(n_head, x)
        n_crooked = sum(distance > 1e-9 for distance in distances)
        lab.exact(f"nonlinear operations, {plural(n_head, 'head')}", n_crooked)
        counts["linear"].append(len(distances) - n_crooked)
        counts["nonlinear"].append(n_crooked)
        lab.equal(f"{plural(n_head, 'head')}: 4 linear operations, the projections", counts["linear"][-1], 4)
        lab.equal(f"{plural(n_head, 'head')}: 3 nonlinear operations per head", n_crooked, 3 * n_head)
    lab.draw.grouped_bars("Nonlinear operations", ("1 head", "3 heads"), counts, "operations")
