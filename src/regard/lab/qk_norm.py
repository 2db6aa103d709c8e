"""Norms on queries and keys bound the scores (Henry et al. 2020; Dehghani et al. 2023).

A query of d numbers with RMS norm and gains g has length at most max|g| sqrt(d). So a score q . k / sqrt(d)
is at most sqrt(d) max|g_q| max|g_k|, however large weights and inputs are. Without norms it grows with both.
What is learned is the look-up of one of 12 pairs, by heads of 16 numbers and Adam without clipping.
"""

import math
from typing import Any

import torch
from torch import Tensor

from regard.lab.learning import Lookup, answered, teach
from regard.lab.spec import Lab, Measurement
from regard.layers import MultiHeadAttention

CLAIM = """Norms on queries and keys bound every score, whatever the inputs and the weights; without them
scores grow with both, and a high learning rate makes them explode."""
PREDICTION = """Plain scores grow with the square of their inputs, normed ones stay below sqrt(d) times the
largest gains, before training and after it at every rate; at a high rate plain scores leave that bound, and
the normed model surely answers more."""

DIM, N_TOKEN, N_VALUE = 16, 32, 6
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


def _taught(lab: Lab, kind: str, rate: float) -> tuple[Measurement, float, Measurement]:
    """The largest score of a model after training at that rate, its bound, and what it answers."""
    model = Lookup(DIM, n_name=24, n_pair=12, n_value=N_VALUE, n_head=1, qk_norm=KINDS[kind])
    teach(model, model.examples, 250 if lab.quick else 600, rate=rate, clip=False)
    names, values, asked, _ = model.examples(500)
    score = _largest(model.attention, model.asked[0](asked), model.name(names) + model.value(values))
    largest = lab.exact(f"largest score, rate {rate:g}, {kind}", score)
    share = answered(lab, f"answered, rate {rate:g}, {kind}", model, model.examples(1000))
    return largest, _bound(model.attention), share


def run(lab: Lab) -> None:
    rates = (0.01, 0.1) if lab.quick else (0.003, 0.01, 0.03, 0.1)
    layers = {kind: MultiHeadAttention(DIM, 1, qk_norm=eps) for kind, eps in KINDS.items()}
    x, limit = torch.randn(8, N_TOKEN, DIM), _bound(layers["QK-norm"])
    grown = {
        kind: [
            lab.exact(f"largest score, inputs times {scale}, {kind}", _largest(layer, scale * x, scale * x))
            for scale in SCALES
        ]
        for kind, layer in layers.items()
    }
    lab.draw.lines("Larger inputs", SCALES, grown, "inputs times", "largest score", log="xy")
    lab.draw.level(limit, "the bound")
    largest, bounds, shares = ({}, {}, {})
    for kind in KINDS:
        taught = [_taught(lab, kind, rate) for rate in rates]
        largest[kind], bounds[kind], shares[kind] = zip(*taught, strict=True)
    lab.draw.lines("After training", rates, largest, "learning rate", "largest score", log="xy")
    lab.draw.predicted(rates, bounds["QK-norm"], "the bound, with learned gains", 1)
    lab.draw.lines("What it then answers", rates, shares, "learning rate", "share answered", log="x")
    lab.draw.chance(1 / N_VALUE)
    points = [*grown["QK-norm"], *largest["QK-norm"]]
    for point, bound in zip(points, [limit] * len(SCALES) + list(bounds["QK-norm"]), strict=True):
        lab.below(f"{point.name}, stays below its bound", point, bound)
    first, *_, last = grown["plain"]
    power = lab.exact("power of the scale, plain", math.log(last / first, SCALES[-1]))
    lab.near("plain scores grow with the square of their inputs", power, 2, slack=1e-3)
    high = f"at the rate {rates[-1]:g}"
    lab.above(f"{high} plain scores leave that bound", largest["plain"][-1], bounds["QK-norm"][-1])
    lab.above(f"{high} only the normed model learns", shares["QK-norm"][-1], shares["plain"][-1])
