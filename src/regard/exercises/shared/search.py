"""What `greedy` and `beam` share: step functions made of random tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from regard.checking.trials import Case, Code, Draw, Impossible, Trial

N_STATE = 13
MOST_TRIES = 3000
# For smaller sizes than meant, where what is wanted may not exist: a failing case is shrunk by trying.
FEW_TRIES = 20

# What is returned of the tokens, start and end among them.
RETURNED = {"end": "tokens", "start": "end"}


@dataclass(frozen=True)
class Table:
    """Logits of the next token, which depend on all tokens so far: their number, their sum and the last."""

    rows: tuple[tuple[float, ...], ...]

    @classmethod
    def draw(cls, draw: Draw, end: int, urge: float) -> Table:
        """A random table; `urge` is added to the logit of the end token."""
        rows = draw.normal(N_STATE, "vocab", scale=1.5)
        rows[:, end] += urge
        return cls(tuple(tuple(round(value, 3) for value in row) for row in rows.tolist()))

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


def search_trial(
    name: str,
    fits: Callable[..., bool],
    meant: Mapping[str, int],
    *,
    start: int = 1,
    end: int = 2,
    urge: float = 0.0,
) -> Trial:
    """A search by the first drawn table for which `fits(table, start, end, *sizes)` holds.

    `meant` are the sizes for which there is one: of the vocabulary, and those that the call is given.
    """

    def make(draw: Draw) -> Case:
        vocab, *sizes = (draw[word] for word in meant)
        first, last = start % vocab, end % vocab
        for _ in range(MOST_TRIES if draw.sizes == meant else FEW_TRIES):
            table = Table.draw(draw, last, urge)
            if fits(table, first, last, *sizes):
                return Case((table.code(), first, last, *sizes))
        raise Impossible(f"no table of sizes {draw.sizes} is as wanted")

    return Trial(name, make, meant, grad=False)


def as_tokens(result: Any) -> list[int]:
    """A sequence in any form as a list of numbers."""
    if isinstance(result, Tensor):
        return [int(token) for token in result.reshape(-1)]
    if not isinstance(result, list | tuple):
        raise TypeError(f"a list of tokens is wanted, not a {type(result).__name__}")
    return [int(token) for token in result]
