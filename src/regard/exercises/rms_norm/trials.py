"""Reference, calls and probes of `rms-norm`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Trial, neighbour_probe
from regard.exercises.shared.norms import normed


def reference(case: Case, **choices: str) -> Tensor:
    """Each row over its root mean square, times the weight."""
    (x,), (width, *_) = case.args, case.init
    eps = float(case.init_kwargs.get("eps", 1e-6))
    weight = case.weights.get("weight", torch.ones(width, dtype=x.dtype))
    return normed(x, weight, eps, choices)


def rows(draw: Draw, *dims: str, scale: float = 1.0, **options: Any) -> Case:
    # Rows of different sizes and means.
    x = draw.normal(*(dims or ("batch", "position")), "dim", mean=0.7) * scale
    x = x * draw.uniform(*x.shape[:-1], 1, low=0.3, high=2.0)
    weight = draw.normal("dim", scale=0.4, mean=1.0)
    return Case((x,), init=(draw["dim"],), init_kwargs=options, weights={"weight": weight})


def with_zeros(draw: Draw) -> Case:
    case = rows(draw)
    case.args[0][0, 0] = 0.0
    return case


SIZES = {"batch": 2, "position": 5, "dim": 7}

TRIALS = (
    Trial("rows of several sizes", rows, SIZES, variants=True),
    Trial("large numbers", lambda draw: rows(draw, scale=900.0), SIZES, variants=True),
    Trial("tiny numbers", lambda draw: rows(draw, scale=1e-3), SIZES),
    Trial("another eps", lambda draw: rows(draw, eps=0.1), SIZES),
    Trial("two axes", lambda draw: rows(draw, "position"), {"position": 3, "dim": 5}),
    Trial("four axes", lambda draw: rows(draw, "batch", "head", "position"), {**SIZES, "head": 3}),
    Trial("as many rows as numbers", rows, {**SIZES, "position": 7}),
    Trial("two numbers", rows, {**SIZES, "dim": 2}),
    Trial("a row of zeros", with_zeros, SIZES),
)

PROBES = (neighbour_probe(rows, SIZES),)
