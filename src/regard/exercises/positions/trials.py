"""Reference, calls and probes of `positions`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Impossible, Probe, Trial, worked

FORMULAS = {
    "exponent": "pair / width",
    "rate": "1e4**exponent",
    "positions": "position",
    "angle": "positions / rate",
    "waves": "column % 2 == 0",  # where a sine stands
    "table": "torch.where(waves, angle.sin(), angle.cos())",
    "rows": "table",
    "times": "rows",
    "layout": "times",
}


def reference(case: Case, **choices: str) -> Tensor:
    """The table of sines and cosines."""
    n_position, width = case.args
    column, position = (torch.arange(n, dtype=torch.float64) for n in (width, n_position))
    names = {"column": column, "pair": column // 2 * 2, "position": position[:, None]}
    table: Tensor = worked(FORMULAS, choices, **names, width=width, n_position=n_position)
    return table


def table(draw: Draw) -> Case:
    if draw["model_dim"] % 2:
        raise Impossible
    return Case((draw["n_position"], draw["model_dim"]))


def two_tables(draw: Draw) -> tuple[Case, ...]:
    return table(draw), Case((2 * draw["n_position"], draw["model_dim"]))


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

PROBES = (Probe("a longer table starts alike", two_tables, {"n_position": 5, "model_dim": 6}, same_start),)
