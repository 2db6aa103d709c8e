"""What exercises with lengths share: rows of length 0, and what dropout must do to weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.checking.trials import Draw

DROPOUT = 0.3  # not the 0.5 that nn.Dropout takes by itself


NONE_DROPPED = "in train mode no weight is 0, and the output is another: dropout belongs on the weights."


def lengths_of(draw: Draw) -> Tensor:
    """One length for each sequence; the first two differ, or one could use the other's unnoticed."""
    lengths = draw.integers(1, draw["key"], "batch")
    if draw["batch"] > 1:
        lengths[0], lengths[1] = max(1, draw["key"] // 2), draw["key"]
    return lengths


def identity_values(draw: Draw) -> Tensor:
    """Two identities side by side: the output is the dropped weights, twice."""
    return torch.eye(draw["key"]).repeat(1, 2).expand(draw["batch"], -1, -1).contiguous()


def drops_weights(results: list[Any], n_head: int = 1) -> str | None:
    """Whether the output in train mode is made of weights that are 0 or what they were over 1 - dropout.

    Each head's values are two identities side by side, so that its output is its weights, twice.
    """
    trained, plain = (
        (result[0] if isinstance(result, list | tuple) else result).double().unflatten(-1, (n_head, 2, -1))
        for result in results
    )
    first, second = trained.unbind(-2)
    if not torch.allclose(first, second, atol=1e-5):
        return "dropout must be applied to the weights: yours drops entries of the output."
    zero = first.abs() < 1e-7
    share = float(zero.double().mean())
    kept = plain.select(-2, 0) / (1 - DROPOUT)
    if share == 0:
        return None if torch.allclose(trained, plain, atol=1e-5) else NONE_DROPPED
    if share == 1:
        return f"in train mode with dropout {DROPOUT}, that share of the weights is dropped; yours drops all."
    if float(torch.where(zero, 0.0, first - kept).abs().max()) > 1e-4:
        return f"in train mode a weight must be 0 or what it was over {1 - DROPOUT}; yours are neither."
    return None


def drops_something(results: list[Any]) -> str | None:
    """Whether train mode is another than eval mode."""
    trained, plain = (result[0] if isinstance(result, list | tuple) else result for result in results)
    if torch.allclose(trained, plain, atol=1e-5):
        return f"with dropout {DROPOUT}, train mode gives what eval mode gives: nothing is dropped."
    return None
