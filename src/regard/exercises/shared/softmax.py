"""The judge of weights that a softmax gave."""

from typing import Any

import torch


def sums_to_one(results: list[Any]) -> str | None:
    """Whether the weights, the last of what is returned, are shares of 1."""
    weights = results[0][-1] if isinstance(results[0], list | tuple) else results[0]
    total = weights.double().sum(-1)
    if torch.allclose(total, torch.ones_like(total), atol=1e-5):
        return None
    return f"each row of weights must sum to 1; yours sum to {total.min():.4g} to {total.max():.4g}."
