"""Reference, calls and probes of `positions`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Impossible, Probe, Trial
from regard.layers.positions import sinusoidal


def reference(case: Case, *, layout: str = "side by side") -> Tensor:
    """Our own positions, in the order that the convention says."""
    table = sinusoidal(*case.args)
    return table if layout == "side by side" else torch.cat([table[:, 0::2], table[:, 1::2]], dim=1)


def table(draw: Draw) -> Case:
    if draw["model_dim"] % 2:
        raise Impossible
    return Case((draw["n_position"], draw["model_dim"]))


def longer(draw: Draw) -> tuple[Case, ...]:
    """A shorter and a longer table."""
    return Case((draw["n_position"], draw["model_dim"])), Case((2 * draw["n_position"], draw["model_dim"]))


def same_start(results: list[Any]) -> str | None:
    short, long = (torch.as_tensor(result).double() for result in results)
    if torch.allclose(short, long[: len(short)], atol=1e-5):
        return None
    return "the first rows must be the same, however many positions are asked for."


TRIALS = (
    Trial("a table", table, {"n_position": 7, "model_dim": 10}, grad=False),
    Trial("a wider one", table, {"n_position": 5, "model_dim": 22}, grad=False),
    Trial("many positions", table, {"n_position": 53, "model_dim": 6}, grad=False),
    Trial("as many positions as dimensions", table, {"n_position": 8, "model_dim": 8}, grad=False),
    Trial("one pair", table, {"n_position": 11, "model_dim": 2}, grad=False),
    Trial("two pairs", table, {"n_position": 3, "model_dim": 4}, grad=False),
)

PROBES = (
    Probe(
        "a longer table starts alike",
        longer,
        {"n_position": 5, "model_dim": 6},
        same_start,
    ),
)
