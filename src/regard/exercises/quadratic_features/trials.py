"""Reference, calls and probes of `quadratic-features`."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Probe, Trial

FACTORS = {"none": 0.0, "1": 1.0, "root of 2": 2**0.5, "2": 2.0}


def reference(
    case: Case,
    *,
    constant: str = "1",
    linear: str = "root of 2",
    squares: str = "1",
    crossed: str = "root of 2",
    axis: str = "the last",
) -> Tensor:
    """Products of features."""

    def features(x: Tensor) -> Tensor:
        x = x.transpose(0, -1) if axis == "the first" else x
        d = x.shape[-1]
        i, j = torch.triu_indices(d, d, offset=1)
        one = x.new_full((*x.shape[:-1], 1), d**0.5 if constant == "d" else FACTORS[constant])
        parts = (one, FACTORS[linear] * x, FACTORS[squares] * x**2, FACTORS[crossed] * x[..., i] * x[..., j])
        joined = torch.cat(parts, -1)
        return joined.transpose(0, -1) if axis == "the first" else joined

    q, k = (features(x) for x in case.args)
    return q @ k if q.dim() == 1 else q @ k.mT


def pairs(draw: Draw) -> Case:
    return Case((draw.normal("n", "d"), draw.normal("m", "d")))


def batched(draw: Draw) -> Case:
    return Case((draw.normal("batch", "head", "n", "d"), draw.normal("batch", "head", "m", "d")))


def single(draw: Draw) -> Case:
    return Case((draw.normal("d"), draw.normal("d")))


def row_changed(draw: Draw) -> tuple[Case, ...]:
    base = pairs(draw)
    q = base.args[0].clone()
    q[0] += 1.5
    return base, base.with_args(q, base.args[1])


TRIALS = (
    Trial("queries and keys", pairs, {"n": 5, "m": 7, "d": 3}, variants=True),
    Trial("more axes", batched, {"batch": 2, "head": 3, "n": 5, "m": 7, "d": 2}, variants=True),
    Trial("two single vectors", single, {"d": 5}),
    Trial("one dimension", pairs, {"n": 3, "m": 2, "d": 1}),
    Trial("many dimensions", pairs, {"n": 2, "m": 3, "d": 11}),
    Trial("as many vectors as dimensions", pairs, {"n": 5, "m": 5, "d": 5}),
)

PROBES = (
    Probe(
        "a vector stands alone",
        row_changed,
        {"n": 5, "m": 7, "d": 3},
        says="one query was changed: the products of the others may not move.",
    ),
)
