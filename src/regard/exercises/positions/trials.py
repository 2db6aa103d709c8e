"""Reference, calls and probes of `positions`."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Impossible, Probe, Trial


def reference(
    case: Case,
    *,
    layout: str = "side by side",
    waves: str = "sine first",
    exponent: str = "2i / model_dim",
    base: str = "10000",
    positions: str = "from 0",
    times: str = "1",
) -> Tensor:
    """The table, in the order that the convention says."""
    n_position, width = case.args
    column = torch.arange(width, dtype=torch.float64)
    pair = (column // 2) * 2
    power = {
        "2i / model_dim": pair / width,
        "of the column": column / width,
        "twice the column": 2 * column / width,
        "i / model_dim": pair / 2 / width,
        "4i / model_dim": 2 * pair / width,
        "2(i + 1) / model_dim": (pair + 2) / width,
        "2i / n_position": pair / n_position,
        "0": 0 * pair,
        "2i / (model_dim - 2)": pair / max(1, width - 2),
    }[exponent]
    number = {"10000": 1e4, "1 / 10000": 1e-4, "1000": 1e3, "100000": 1e5, "e": math.e, "a product": 1e4}[
        base
    ]
    position = torch.arange(n_position, dtype=torch.float64)[:, None]
    place = {"from 1": position + 1, "a share": position / n_position, "in turns": position * 2 * math.pi}
    rate = number * power + (power == 0) if base == "a product" else number**power
    angle = place.get(positions, position) / rate
    sine = {
        "sine first": column % 2 == 0,
        "cosine first": column % 2 == 1,
        "sines": column >= 0,
        "cosines": column < 0,
        "by position": (position % 2 == 0).expand(-1, width),
    }[waves]
    table = torch.where(sine, angle.sin(), angle.cos())
    if positions == "without 0":
        table[0] = 0
    if times == "1 / root of the width":
        table = table / width**0.5
    if layout == "halves":
        table = torch.cat([table[:, 0::2], table[:, 1::2]], dim=1)
    return table


def table(draw: Draw) -> Case:
    if draw["model_dim"] % 2:
        raise Impossible
    return Case((draw["n_position"], draw["model_dim"]))


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
        lambda draw: (table(draw), Case((2 * draw["n_position"], draw["model_dim"]))),
        {"n_position": 5, "model_dim": 6},
        same_start,
    ),
)
