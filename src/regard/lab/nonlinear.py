"""Which operations of self-attention are nonlinear, found by feeding a x for x."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from regard.attention.scores import ScoreRule
from regard.attention.softmax import masked_softmax, weights
from regard.lab.spec import Lab
from regard.layers.attention import MultiHeadAttention, merge_heads, split_heads

CLAIM = """Softmax is not the only nonlinear operation of self-attention: without it the layer is cubic in its
input, because scores and the weighted sum multiply what depends on it."""
PREDICTION = """With softmax removed f(a x) = a^3 f(x) exactly, scores have degree 2 and projections 1; with
softmax no power fits. Of the operations, 4 projections are linear and 3 for each head are not."""

DIM, LENGTH = 12, 7
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
DEGREES = {"query": 1, "key": 1, "value": 1, "scores": 2, "output": 3}
RULE = ScoreRule()


def _stages(layer: MultiHeadAttention, x: Tensor, *, softmax: bool = False) -> dict[str, Tensor]:
    """The layer's intermediate results for an input x."""
    q, k, v = (split_heads(project(x), layer.n_head) for project in (layer.query, layer.key, layer.value))
    scores = RULE.scores(q, k)
    table = weights(q, k, RULE) if softmax else scores
    return {"query": q, "key": k, "value": v, "scores": scores, "output": layer.out(merge_heads(table @ v))}


def _degree(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[float, float]:
    """The power p of f(a x) = a^p f(x) that fits best, and how far from it f is, relative to f."""
    norms = [float(function(a * x).norm()) for a in FACTORS]
    logs = [math.log(a) for a in FACTORS]
    power = sum(a * math.log(n) for a, n in zip(logs, norms, strict=True)) / sum(a * a for a in logs)
    at_one = function(x)
    misfit = max(
        float((function(a * x) - a**power * at_one).norm() / at_one.norm() / a**power) for a in FACTORS
    )
    return power, misfit


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
def run(lab: Lab) -> str:
    x = torch.randn(3, LENGTH, DIM, dtype=torch.float64)
    layer = MultiHeadAttention(DIM, 3).double()
    for name, power in DEGREES.items():
        fitted, misfit = _degree(lambda x, name=name: _stages(layer, x)[name], x)  # type: ignore[misc]
        lab.exact(f"degree of {name}, no softmax", fitted)
        lab.equal(f"without softmax, {name} has degree {power}", fitted, power, rounding=1e-9)
        lab.below("and is exactly that", misfit, 1e-9)
    cubic = fitted

    def output(x: Tensor, *, softmax: bool) -> Tensor:
        return _stages(layer, x, softmax=softmax)["output"]

    fitted, misfit = _degree(lambda x: output(x, softmax=True), x)
    lab.exact("degree that fits best, with softmax", fitted)
    lab.exact("misfit of the output with softmax, to its best power", misfit)
    lab.above("with softmax, no power fits", misfit, 0.01)
    fine = [2 ** (step / 4) for step in range(-8, 9)]
    sizes = {
        name: [float(output(a * x, softmax=softmax).norm() / output(x, softmax=softmax).norm()) for a in fine]
        for name, softmax in (("with softmax", True), ("softmax removed", False))
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
        n_straight = len(distances) - n_crooked
        lab.exact(f"nonlinear operations, {n_head} heads", n_crooked)
        lab.equal(f"{n_head} heads: 3 nonlinear operations a head", n_crooked, 3 * n_head)
        lab.equal(f"{n_head} heads: 4 linear ones, the projections", n_straight, 4)
        counts["linear"].append(n_straight)
        counts["nonlinear"].append(n_crooked)
    lab.draw.grouped_bars("Nonlinear operations", ("1 head", "3 heads"), counts, "operations")
    lab.notes += [
        "Scores and the weighted sum multiply two things that both depend on x: linear in each, not in both."
    ]
    return (
        f"with softmax removed f(a x) = a^{cubic:.0f} f(x), with it no power fits (off by {misfit:.0%}), and "
        "each head has 3 nonlinear operations: scores, softmax, weighted sum"
    )
