"""What `greedy` and `beam` share: step functions made of random tables."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from regard.checking.trials import Code, Draw, Impossible

N_STATE = 13
MOST_TRIES = 3000
# For smaller sizes than meant, where what is wanted may not exist: a failing case is shrunk by trying.
FEW_TRIES = 20
# Logits that lie nearer than this are a tie, which `topk` and `sort` may break differently.
TIE = 0.0015


@dataclass(frozen=True)
class Table:
    """Logits of the next token, which depend on all tokens so far: their number, their sum and the last."""

    rows: tuple[tuple[float, ...], ...]

    def code(self) -> Code:
        """The step function, as an argument."""
        # Tokens may come as numbers or as tensors, in a list or in a tensor.
        state = "(3 * len(tokens) + 5 * sum(int(t) for t in tokens) + 2 * int(tokens[-1]))"
        return Code(f"lambda tokens: torch.tensor({[list(row) for row in self.rows]})[{state} % {N_STATE}]")

    def log_probabilities(self, tokens: Sequence[int]) -> list[float]:
        """The same without torch, for choosing tables."""
        row = self.rows[(3 * len(tokens) + 5 * sum(tokens) + 2 * tokens[-1]) % N_STATE]
        total = math.log(sum(map(math.exp, row)))
        return [value - total for value in row]


def searchable(
    draw: Draw, vocab: int, end: int, urge: float, as_meant: bool, fits: Callable[[Table], bool]
) -> Code:
    """The step function of the first table for which `fits` holds; `urge` is added to the end's logit."""
    for _ in range(MOST_TRIES if as_meant else FEW_TRIES):
        rows = draw.normal(N_STATE, vocab, scale=1.5)
        rows[:, end] += urge
        if bool((rows.sort(dim=-1).values.diff(dim=-1) < TIE).any()):
            continue
        table = Table(tuple(tuple(round(value, 3) for value in row) for row in rows.tolist()))
        if fits(table):
            return table.code()
    raise Impossible(f"no table of sizes {draw.sizes} is as wanted")


def as_tokens(result: Any) -> list[int]:
    """A sequence in any form as a list of numbers."""
    if isinstance(result, Tensor):
        return [int(token) for token in result.reshape(-1)]
    if not isinstance(result, list | tuple):
        raise TypeError(f"a list of tokens is wanted, not a {type(result).__name__}")
    return [int(token) for token in result]
