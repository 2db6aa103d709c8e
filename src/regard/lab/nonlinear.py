"""Which operations of self-attention are nonlinear, found by feeding a x for x."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from regard.attention.scores import ScoreRule
from regard.attention.softmax import masked_softmax, weights
from regard.lab.drawing import draw, finish, grouped_bars, panels
from regard.lab.spec import Check, Experiment, Measurement, Result, above, below, equal
from regard.layers.attention import MultiHeadAttention, merge_heads, split_heads

DIM, LENGTH = 12, 7
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)


def _stages(layer: MultiHeadAttention, *, softmax: bool) -> dict[str, Callable[[Tensor], Tensor]]:
    """Each intermediate result as a function of the layer's input x."""
    rule = ScoreRule()

    def heads(projection: nn.Module) -> Callable[[Tensor], Tensor]:
        return lambda x: split_heads(projection(x), layer.n_head)

    q, k, v = heads(layer.query), heads(layer.key), heads(layer.value)

    def scores(x: Tensor) -> Tensor:
        return rule.scores(q(x), k(x))

    def out(x: Tensor) -> Tensor:
        table = weights(q(x), k(x), rule) if softmax else scores(x)
        merged: Tensor = layer.out(merge_heads(table @ v(x)))
        return merged

    return {"query": q, "key": k, "value": v, "scores": scores, "output": out}


@torch.no_grad()
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


@torch.no_grad()
def _additive(function: Callable[..., Tensor], *arguments: Tensor) -> float:
    """How far f(x + y) is from f(x) + f(y), relative; 0 for a linear operation."""
    others = [torch.randn_like(argument) for argument in arguments]
    both = function(*(a + b for a, b in zip(arguments, others, strict=True)))
    apart = function(*arguments) + function(*others)
    return float((both - apart).norm() / both.norm())


def _operations(n_head: int, x: Tensor) -> dict[str, float]:
    """Every operation of the layer as a function of its own inputs, with its distance from linear.

    Projections act on all heads at once; scores, softmax and the weighted sum once for each head.
    """
    layer = MultiHeadAttention(DIM, n_head).double()
    projections = {"query": layer.query, "key": layer.key, "value": layer.value, "out": layer.out}
    distances = {name: _additive(projection, x) for name, projection in projections.items()}
    rule = ScoreRule()
    for head in range(n_head):
        q, k, v = (
            split_heads(projections[name](x), n_head)[:, head : head + 1]
            for name in ("query", "key", "value")
        )
        scores = rule.scores(q, k)
        distances[f"scores {head}"] = _additive(rule.scores, q, k)
        distances[f"softmax {head}"] = _additive(lambda s: masked_softmax(s[:, 0])[:, None], scores)
        distances[f"weighted sum {head}"] = _additive(torch.matmul, weights(q, k, rule), v)
    return distances


def run(quick: bool, seed: int) -> Result:
    x = torch.randn(3, LENGTH, DIM, dtype=torch.float64)
    layer = MultiHeadAttention(DIM, 3).double()
    figure, (norm_ax, count_ax) = panels("f(a x) against a", "Nonlinear operations")
    predicted = {"query": 1, "key": 1, "value": 1, "scores": 2, "output": 3}
    checks: list[Check] = []
    measured: list[Measurement] = []
    bare = _stages(layer, softmax=False)
    for name, power in predicted.items():
        fitted, misfit = _degree(bare[name], x)
        measured.append(Measurement.exact(f"degree of {name}, no softmax", fitted))
        checks.append(equal(f"without softmax, {name} has degree {power}", fitted, power, rounding=1e-9))
        checks.append(below("and is exactly that", Measurement.exact(f"misfit of {name}", misfit), 1e-9))
    whole = _stages(layer, softmax=True)["output"]
    fitted, misfit = _degree(whole, x)
    with_softmax = Measurement.exact("misfit of the output with softmax, to its best power", misfit)
    measured += [Measurement.exact("degree that fits best, with softmax", fitted), with_softmax]
    checks.append(above("with softmax, no power fits", with_softmax, 0.01))
    fine = [2 ** (step / 4) for step in range(-8, 9)]
    with torch.no_grad():
        drawn = {"with softmax": whole, "softmax removed": bare["output"]}
        for index, (name, function) in enumerate(drawn.items()):
            size = float(function(x).norm())
            draw(norm_ax, fine, [float(function(a * x).norm()) / size for a in fine], name, index)
    draw(norm_ax, fine, [a**3 for a in fine], "a³", 2, dashed=True)
    draw(norm_ax, fine, list(fine), "a (linear)", 4, dashed=True)
    norm_ax.set_xscale("log", base=2)
    norm_ax.set_yscale("log", base=2)
    finish(norm_ax, "a", "|f(a x)| / |f(x)|")
    counts: dict[str, list[int]] = {"linear": [], "nonlinear": []}
    for n_head in (1, 3):
        distances = _operations(n_head, x)
        n_crooked = sum(distance > 1e-9 for distance in distances.values())
        n_straight = len(distances) - n_crooked
        measured.append(Measurement.exact(f"nonlinear operations, {n_head} heads", n_crooked))
        checks += [
            equal(f"{n_head} heads: 3 nonlinear operations a head", n_crooked, 3 * n_head),
            equal(f"{n_head} heads: 4 linear ones, the projections", n_straight, 4),
        ]
        counts["linear"].append(n_straight)
        counts["nonlinear"].append(n_crooked)
    grouped_bars(count_ax, ("1 head", "3 heads"), counts)
    finish(count_ax, "", "operations")
    return Result(
        measured,
        checks,
        figure,
        f"with softmax removed f(a x) = a^{measured[4].value:.0f} f(x), with it no power fits (off by "
        f"{with_softmax.value:.0%}), and each head has 3 nonlinear operations: scores, softmax, weighted sum",
        notes=(
            "Scores and the weighted sum multiply two things that both depend on x: linear in each, not in "
            "both.",
        ),
    )


EXPERIMENT = Experiment(
    "nonlinear",
    "Softmax is not the only nonlinear operation of self-attention: without it the layer is cubic in its "
    "input, because scores and the weighted sum multiply what depends on it.",
    "With softmax removed f(a x) = a^3 f(x) exactly, scores have degree 2 and projections 1; with softmax "
    "no power fits. Of the operations, 4 projections are linear and 3 for each head are not.",
    run,
)
