"""A norm by the root of the mean square: its formulas, of which mistakes replace some."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from regard.checking.trials import worked

FORMULAS = {
    "eps": "eps",
    "centred": "x",
    "scaled": "centred",
    "squares": "scaled.square()",
    "mean": "squares.mean(-1, keepdim=True)",
    "inside": "mean + eps",
    "root": "inside.sqrt()",
    "divisor": "root",
    "divided": "scaled / divisor",
    "weighted": "divided * weight",
}


def normed(x: Tensor, weight: Tensor, eps: float, choices: Mapping[str, str]) -> Tensor:
    """Each row divided by its root mean square, times the weight."""
    result: Tensor = worked(FORMULAS, choices, x=x, weight=weight, eps=eps, n=x.shape[-1])
    return result
