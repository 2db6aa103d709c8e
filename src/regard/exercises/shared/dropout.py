"""The judge of dropout on attention weights."""

from collections.abc import Callable
from typing import Any

import torch

DROPOUT = 0.3  # not the 0.5 that nn.Dropout takes by itself


def drops_weights(n_head: int) -> Callable[[list[Any]], str | None]:
    """Whether the output in train mode is made of weights that are 0 or what they were over 1 - dropout.

    Each head's values are two identities side by side, so that its output is its weights, twice.
    """

    def judge(results: list[Any]) -> str | None:
        outputs = [(result[0] if isinstance(result, list | tuple) else result).double() for result in results]
        trained, plain = (output.unflatten(-1, (n_head, 2, -1)) for output in outputs)
        if torch.allclose(trained, plain, atol=1e-5):
            return f"with dropout {DROPOUT}, train mode gives what eval mode gives: nothing is dropped."
        first, second = trained.unbind(-2)
        if not torch.allclose(first, second, atol=1e-5):
            return "dropout must be applied to the weights: yours drops entries of the output."
        zero = first.abs() < 1e-7
        if not zero.any():
            return "in train mode no weight is 0, and the output is another: dropout belongs on the weights."
        if zero.all():
            share = f"in train mode with dropout {DROPOUT}, that share of the weights is dropped"
            return f"{share}; yours drops all."
        kept = plain.select(-2, 0) / (1 - DROPOUT)
        if float(torch.where(zero, 0.0, first - kept).abs().max()) > 1e-4:
            return f"in train mode a weight must be 0 or what it was over {1 - DROPOUT}; yours are neither."
        return None

    return judge
