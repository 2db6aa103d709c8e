"""Norms on queries and keys bound the scores (Henry et al. 2020; Dehghani et al. 2023).

A query of d numbers with RMS norm and gains g has length at most max|g| sqrt(d). So a score q . k / sqrt(d)
is at most sqrt(d) max|g_q| max|g_k|, however large weights and inputs are. Without norms it grows with both.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from regard.lab.learning import Lookup, teach
from regard.lab.measurement import Measurement
from regard.lab.spec import Lab
from regard.layers.attention import MultiHeadAttention

CLAIM = """Norms on queries and keys bound every score, whatever the inputs and the weights; without them
scores grow with both, and a high learning rate makes them explode."""
PREDICTION = """Plain scores grow with the square of their inputs, normed ones stay below sqrt(d) times the
largest gains, before training and after it at every rate; at a high rate plain scores leave that bound, and
the normed model surely answers more."""

DIM, N_TOKEN = 16, 32
N_NAME, N_PAIR, N_VALUE = 24, 12, 6
SCALES = (1, 4, 16, 64)
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


def _taught(lab: Lab, kind: str, rate: float, n_step: int) -> tuple[Measurement, float, Measurement]:
    """The largest score of a model after training at that rate, its bound, and what it answers."""
    model = Lookup(DIM, n_name=N_NAME, n_pair=N_PAIR, n_value=N_VALUE, qk_norm=KINDS[kind])
    teach(model, model.examples, n_step, rate=rate, clip=False)
    names, values, asked, _ = model.examples(500)
    score = _largest(model.attention, model.asked[0](asked), model.name(names) + model.value(values))
    largest = lab.exact(f"largest score, rate {rate:g}, {kind}", score)
    return largest, _bound(model.attention), model.share_right(lab, f"answered, rate {rate:g}, {kind}")


def run(lab: Lab) -> str:
    rates = (0.01, 0.1) if lab.quick else (0.003, 0.01, 0.03, 0.1)
    n_step = 250 if lab.quick else 600
    layers = {kind: MultiHeadAttention(DIM, 1, qk_norm=eps) for kind, eps in KINDS.items()}
    x, limit = torch.randn(8, N_TOKEN, DIM), _bound(layers["QK-norm"])
    grown = {
        kind: [
            lab.exact(f"largest score, inputs times {scale}, {kind}", _largest(layer, scale * x, scale * x))
            for scale in SCALES
        ]
        for kind, layer in layers.items()
    }
    lab.draw.lines("Larger inputs", SCALES, grown, "inputs times", "largest score", log_x=True, log_y=True)
    lab.draw.level(limit, "the bound")
    first, *_, last = grown["plain"]
    power = lab.exact("power of the scale, plain", math.log(last.value / first.value, SCALES[-1]))
    lab.near("plain scores grow with the square of their inputs", power, 2, slack=1e-3)
    for point in grown["QK-norm"]:
        lab.below(f"{point.name}, stays below its bound", point, limit)
    taught = {kind: [_taught(lab, kind, rate, n_step) for rate in rates] for kind in KINDS}
    largest = {kind: [score for score, _, _ in of_kind] for kind, of_kind in taught.items()}
    answered = {kind: [share for _, _, share in of_kind] for kind, of_kind in taught.items()}
    bounds = [bound for _, bound, _ in taught["QK-norm"]]
    x_label = "learning rate"
    lab.draw.lines("After training", rates, largest, x_label, "largest score", log_x=True, log_y=True)
    lab.draw.predicted(rates, bounds, "the bound, with learned gains", 1)
    lab.draw.lines("What it then answers", rates, answered, x_label, "share answered", log_x=True)
    lab.draw.chance(1 / N_VALUE)
    for point, bound in zip(largest["QK-norm"], bounds, strict=True):
        lab.below(f"{point.name}, stays below its bound", point, bound)
    high = f"at the rate {rates[-1]:g}"
    (plain, _, said), (normed, bound, said_normed) = (of_kind[-1] for of_kind in taught.values())
    lab.above(f"{high} plain scores leave that bound", plain, bound)
    lab.above(f"{high} only the normed model learns", said_normed, said)
    lab.notes += [
        f"A look-up of one of {N_PAIR} pairs, heads of {DIM} numbers, {n_step} steps of Adam, unclipped; "
        f"chance is {1 / N_VALUE:.0%}."
    ]
    return (
        f"inputs {SCALES[-1]} times larger make plain scores {SCALES[-1]}^{power:.2f} times larger, and "
        f"leave normed ones below {limit:.3g}; {high} plain scores reach {plain:,.0f} and {said:.0%} is "
        f"answered, normed ones {normed:.0f} (bound {bound:.0f}), {said_normed:.0%}"
    )
