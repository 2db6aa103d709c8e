"""Which operations of self-attention are nonlinear, found by feeding a x for x."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from regard.attention import scores
from regard.attention import softmax as attention
from regard.lab.drawing import draw, finish, panels
from regard.lab.spec import Check, Experiment, Measurement, Result, above, below, equal
from regard.layers import attention as layers

DIM, LENGTH = 12, 7
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)


def _stages(layer: layers.MultiHeadAttention, *, softmax: bool) -> dict[str, Callable[[Tensor], Tensor]]:
    """Each intermediate result as a function of the layer's input x."""
    rule = scores.ScoreRule()

    def q(x: Tensor) -> Tensor:
        return layers.split_heads(layer.query(x), layer.n_head)

    def k(x: Tensor) -> Tensor:
        return layers.split_heads(layer.key(x), layer.n_head)

    def v(x: Tensor) -> Tensor:
        return layers.split_heads(layer.value(x), layer.n_head)

    def similarity(x: Tensor) -> Tensor:
        return rule.scores(q(x), k(x))

    def weights(x: Tensor) -> Tensor:
        return attention.weights(q(x), k(x), rule) if softmax else similarity(x)

    def out(x: Tensor) -> Tensor:
        merged: Tensor = layer.out(layers.merge_heads(weights(x) @ v(x)))
        return merged

    return {"query": q, "key": k, "value": v, "scores": similarity, "weights": weights, "output": out}


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
    others = [torch.randn_like(each) for each in arguments]
    both = function(*(a + b for a, b in zip(arguments, others, strict=True)))
    apart = function(*arguments) + function(*others)
    return float((both - apart).norm() / both.norm())


def _operations(n_head: int, x: Tensor) -> dict[str, float]:
    """Every operation of the layer as a function of its own inputs, with its distance from linear.

    Projections act on all heads at once; scores, softmax and the weighted sum once for each head.
    """
    layer = layers.MultiHeadAttention(DIM, n_head).double()
    found = {name: _additive(getattr(layer, name), x) for name in ("query", "key", "value", "out")}
    rule = scores.ScoreRule()
    for head in range(n_head):
        q, k, v = (
            layers.split_heads(each(x), n_head)[:, head : head + 1]
            for each in (layer.query, layer.key, layer.value)
        )
        found[f"scores {head}"] = _additive(rule.scores, q, k)
        found[f"softmax {head}"] = _additive(
            lambda s: attention.masked_softmax(s[:, 0])[:, None], rule.scores(q, k)
        )
        weights = attention.weights(q, k, rule)
        found[f"weighted sum {head}"] = _additive(torch.matmul, weights, v)
    return found


def run(quick: bool, seed: int) -> Result:
    x = torch.randn(3, LENGTH, DIM, dtype=torch.float64)
    layer = layers.MultiHeadAttention(DIM, 3).double()
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
        for index, (name, function) in enumerate(
            (("with softmax", whole), ("softmax removed", bare["output"]))
        ):
            size = float(function(x).norm())
            draw(norm_ax, fine, [float(function(a * x).norm()) / size for a in fine], name, index)
    draw(norm_ax, fine, [a**3 for a in fine], "a³", 2, dashed=True)
    draw(norm_ax, fine, list(fine), "a (linear)", 4, dashed=True)
    norm_ax.set_xscale("log", base=2)
    norm_ax.set_yscale("log", base=2)
    finish(norm_ax, "a", "|f(a x)| / |f(x)|")
    for place, n_head in enumerate((1, 3)):
        distances = _operations(n_head, x)
        crooked = sorted(name for name, distance in distances.items() if distance > 1e-9)
        straight = len(distances) - len(crooked)
        measured.append(Measurement.exact(f"nonlinear operations, {n_head} heads", len(crooked)))
        checks += [
            equal(f"{n_head} heads: 3 nonlinear operations a head", len(crooked), 3 * n_head),
            equal(f"{n_head} heads: 4 linear ones, the projections", straight, 4),
        ]
        label = ("linear", "nonlinear") if not place else ("_", "_")
        count_ax.bar(place - 0.2, straight, width=0.36, color="#8c8c8c", label=label[0])
        count_ax.bar(place + 0.2, len(crooked), width=0.36, color="#d55e00", label=label[1])
    count_ax.set_xticks((0, 1), ("1 head", "3 heads"))
    finish(count_ax, "", "operations")
    return Result(
        tuple(measured),
        tuple(checks),
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
