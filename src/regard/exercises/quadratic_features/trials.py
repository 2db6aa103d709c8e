"""Reference, calls and probes of `quadratic-features`."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Probe, Trial, changed

FACTORS = {"none": 0.0, "1": 1.0, "root of 2": 2**0.5, "root of 3": 3**0.5, "2": 2.0}


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


def pairs(draw: Draw, *before: str) -> Case:
    return Case((draw.normal(*before, "n", "d"), draw.normal(*before, "m", "d")))


def batched(draw: Draw) -> Case:
    return pairs(draw, "batch", "head")


def single(draw: Draw) -> Case:
    return Case((draw.normal("d"), draw.normal("d")))


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
        changed(pairs, lambda case, draw: case.args[0][0].add_(1.5)),
        {"n": 5, "m": 7, "d": 3},
        says="one query was changed: the products of the others may not move.",
    ),
)
