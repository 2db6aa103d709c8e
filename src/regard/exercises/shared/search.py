"""What `greedy` and `beam` share: step functions made of random tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from regard.checking.trials import Code, Draw, Impossible

N_STATE = 13


MOST_TRIES = 3000


# For smaller sizes than meant, where what is wanted may not exist: a failing case is shrunk by trying.
FEW_TRIES = 20


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


def chosen(
    draw: Draw, meant: Mapping[str, int], end: int, urge: float, wanted: Callable[[Table], bool]
) -> Table:
    """The first drawn table that is as wanted; `meant` are the sizes for which there is one."""
    for _ in range(MOST_TRIES if draw.sizes == dict(meant) else FEW_TRIES):
        table = Table.draw(draw, end, urge)
        if wanted(table):
            return table
    raise Impossible(f"no table of sizes {draw.sizes} is as wanted")


def given_to_step(tokens: list[int], what: str) -> list[int]:
    """What `step` is called with."""
    return {
        "the last": tokens[-1:],
        "the start": tokens[:1],
        "without the start": tokens[1:] or tokens,
        "without the newest": tokens[:-1] or tokens,
        "backwards": tokens[::-1],
    }.get(what, tokens)


def as_tokens(result: Any) -> list[int]:
    """A sequence in any form as a list of numbers."""
    if isinstance(result, Tensor):
        return [int(token) for token in result.reshape(-1)]
    if not isinstance(result, list | tuple):
        raise TypeError(f"a list of tokens is wanted, not a {type(result).__name__}")
    return [int(token) for token in result]
