"""Norms on queries and keys bound the scores (Henry et al. 2020; Dehghani et al. 2023).

A query of d numbers with RMS norm and gains g has length at most max|g| sqrt(d). So a score q . k / sqrt(d)
is at most sqrt(d) max|g_q| max|g_k|, however large weights and inputs are. Without norms it grows with both.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.lab.drawing import draw, finish, level, panels, sweep
from regard.lab.learning import Lookup
from regard.lab.spec import Check, Experiment, Measurement, Result, above, below, near
from regard.layers.attention import MultiHeadAttention

DIM, N_TOKEN = 16, 32
N_NAME, N_PAIR, N_VALUE = 24, 12, 6
KINDS: dict[str, float | None] = {"plain": None, "QK-norm": 1e-6}  # eps of the norm


def _bound(layer: MultiHeadAttention) -> float:
    """The largest score that the norms of a layer allow."""
    if layer.query_norm is None or layer.key_norm is None:
        return math.inf
    query, key = (float(norm.weight.detach().abs().max()) for norm in (layer.query_norm, layer.key_norm))
    return math.sqrt(layer.qk_dim) * query * key


@torch.no_grad()
def _largest(layer: MultiHeadAttention, x: Tensor, memory: Tensor) -> float:
    """The largest score, in size."""
    seen: list[Tensor] = []

    def record(name: str, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, rule: Any) -> None:
        seen.append(rule.scores(q, k).abs().max())

    layer(x, memory, record=record)
    return float(seen[0])


def _taught(eps: float | None, rate: float, n_step: int) -> tuple[float, float, Measurement]:
    """The largest score of a model after training at that rate, its bound, and what it answers."""
    model = Lookup(DIM, n_name=N_NAME, n_pair=N_PAIR, n_value=N_VALUE, qk_norm=eps)
    model.taught(n_step, rate=rate)
    names, values, asked, _ = model.examples(500)
    largest = _largest(model.attention, model.asked[0](asked), model.name(names) + model.value(values))
    return largest, _bound(model.attention), model.share_right("answered")


def run(quick: bool, seed: int) -> Result:
    scales = (1, 4, 16, 64)
    rates = (0.01, 0.1) if quick else (0.003, 0.01, 0.03, 0.1)
    n_step = 250 if quick else 600
    figure, (scale_ax, rate_ax, answer_ax) = panels("Larger inputs", "After training", "What it then answers")
    layers = {kind: MultiHeadAttention(DIM, 1, qk_norm=eps) for kind, eps in KINDS.items()}
    x = torch.randn(8, N_TOKEN, DIM)
    grown = sweep(
        scale_ax,
        scales,
        KINDS,
        lambda kind, scale: Measurement.exact(
            f"largest score, inputs times {scale}, {kind}", _largest(layers[kind], scale * x, scale * x)
        ),
    )
    level(scale_ax, _bound(layers["QK-norm"]), "the bound", scales[0])
    finish(scale_ax, "inputs times", "largest score", doublings=scales, log_y=True)
    power = Measurement.exact(
        "power of the scale, plain", math.log(grown["plain"][-1].value / grown["plain"][0].value, scales[-1])
    )
    checks: list[Check] = [near("plain scores grow with the square of their inputs", power, 2, slack=1e-3)]
    checks += [
        below(f"{point.name}, stays below its bound", point, _bound(layers["QK-norm"]))
        for point in grown["QK-norm"]
    ]
    largest: dict[str, list[Measurement]] = {}
    answered: dict[str, list[Measurement]] = {}
    bounds = []
    for index, (kind, eps) in enumerate(KINDS.items()):
        for rate in rates:
            score, bound, share = _taught(eps, rate, n_step)
            largest.setdefault(kind, []).append(
                Measurement.exact(f"largest score, rate {rate:g}, {kind}", score)
            )
            answered.setdefault(kind, []).append(replace(share, name=f"answered, rate {rate:g}, {kind}"))
            bounds += [] if eps is None else [bound]
        draw(rate_ax, rates, largest[kind], kind, index)
        draw(answer_ax, rates, answered[kind], kind, index)
    draw(rate_ax, rates, bounds, "the bound, with learned gains", 1, dashed=True)
    finish(rate_ax, "learning rate", "largest score", log_y=True)
    level(answer_ax, 1 / N_VALUE, "chance", rates[0])
    finish(answer_ax, "learning rate", "share answered", legend=False)
    for ax in (rate_ax, answer_ax):
        ax.set_xscale("log")
    checks += [
        below(f"{point.name}, stays below its bound", point, bound)
        for point, bound in zip(largest["QK-norm"], bounds, strict=True)
    ]
    high = f"at the rate {rates[-1]:g}"
    checks += [
        above(f"{high} plain scores leave that bound", largest["plain"][-1], bounds[-1]),
        above(f"{high} only the normed model learns", answered["QK-norm"][-1], answered["plain"][-1]),
    ]
    lines = [line for measured in (grown, largest, answered) for line in measured.values()]
    return Result(
        [*(point for line in lines for point in line), power],
        checks,
        figure,
        f"inputs {scales[-1]} times larger make plain scores {scales[-1]}^{power.value:.2f} times larger, "
        f"and leave normed ones below {_bound(layers['QK-norm']):.3g}; {high} plain scores reach "
        f"{largest['plain'][-1].value:,.0f} and {answered['plain'][-1].value:.0%} is answered, normed ones "
        f"{largest['QK-norm'][-1].value:.0f} (bound {bounds[-1]:.0f}), {answered['QK-norm'][-1].value:.0%}",
        notes=(
            f"A look-up of one of {N_PAIR} pairs, heads of {DIM} numbers, {n_step} steps of Adam, unclipped; "
            f"chance is {1 / N_VALUE:.0%}.",
        ),
    )


EXPERIMENT = Experiment(
    "qk norm",
    "Norms on queries and keys bound every score, whatever the inputs and the weights; without them scores "
    "grow with both, and a high learning rate makes them explode.",
    "Plain scores grow with the square of their inputs, normed ones stay below sqrt(d) times the largest "
    "gains, before training and after it at every rate; at a high rate plain scores leave that bound, and "
    "the normed model surely answers more.",
    run,
)
