"""A softmax that is taken block by block: its formulas, of which mistakes replace some."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from regard.checking.trials import worked

State = tuple[Tensor, Tensor, Tensor]  # largest score, sum of exponentials, sum of values with these weights

FORMULAS = {
    "o": "o",
    "of_block": "scores.amax(-1)",
    "largest": "torch.maximum(m, of_block)",
    "new": "largest",
    # A row that has seen nothing has no largest score: -inf minus -inf is NaN.
    "anchor": "torch.where(new == -torch.inf, 0.0, new)",
    "block": "anchor",
    "e": "(scores - block[..., None]).exp()",
    "ratio": "(m - anchor).exp()",
    "correction": "torch.where(m == -torch.inf, 0.0, ratio)",
    "corrected": "correction, correction[..., None]",
    "sums": "corrected[0] * l + e.sum(-1), corrected[1] * o + e @ values",
    "state": "(new, *sums)",
}


def online_step(choices: Mapping[str, str], *given: Tensor) -> State:
    """The state after one more block: of a state, scores (..., query, key) and values (..., key, dim)."""
    names = ("m", "l", "o", "scores", "values")
    new: State = worked(FORMULAS, choices, **dict(zip(names, given, strict=True)))
    return new


def start(like: Tensor, width: int) -> State:
    """The state before the first block, for queries of shape (..., query, dim)."""
    rows = like.new_zeros(like.shape[:-1])
    return rows - torch.inf, rows, like.new_zeros(*like.shape[:-1], width)
