"""What `greedy` and `beam` share: step functions made of random tables, and our decoder's view of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.checking.trials import Case, Code, Draw, Impossible

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


Hypothesis = tuple[tuple[int, ...], float]


def chosen(
    draw: Draw, meant: Mapping[str, int], end: int, urge: float, wanted: Callable[[Table], bool]
) -> Table:
    """The first drawn table that is as wanted; `meant` are the sizes for which there is one."""
    for _ in range(MOST_TRIES if draw.sizes == dict(meant) else FEW_TRIES):
        table = Table.draw(draw, end, urge)
        if wanted(table):
            return table
    raise Impossible(f"no table of sizes {draw.sizes} is as wanted")


class Stepped:
    """A step function as a model that our decoder can run."""

    def __init__(self, step: Callable[[list[int]], Tensor]) -> None:
        self.step = step
        self.sequences: list[list[int]] = []

    def parameters(self) -> Iterator[Tensor]:
        """None: the decoder asks for them to find the device."""
        return iter(())

    def begin(
        self, prompt: Tensor, visible: Tensor | None = None, *, start_token: int | None = None
    ) -> tuple[Tensor, Stepped]:
        self.sequences = prompt.tolist()
        return self._scores(), self

    def next(self, tokens: Tensor) -> Tensor:
        for sequence, token in zip(self.sequences, tokens.tolist(), strict=True):
            sequence.append(token)
        return self._scores()

    def reorder(self, sequences: Tensor) -> None:
        self.sequences = [list(self.sequences[index]) for index in sequences.tolist()]

    def _scores(self) -> Tensor:
        return torch.stack([self.step(sequence) for sequence in self.sequences])


def whole(case: Case, found: Sequence[int], end: int, max_new: int, start: str, ended: str) -> list[int]:
    """What our decoder found, with start and end token as the conventions say."""
    tokens = list(found)
    if len(tokens) < max_new and ended == "with":  # it stopped early, so at the end token
        tokens.append(end)
    return [case.args[1], *tokens] if start == "with" else tokens


def as_tokens(result: Any) -> list[int]:
    """A sequence in any form as a list of numbers."""
    if isinstance(result, Tensor):
        return [int(token) for token in result.reshape(-1)]
    if not isinstance(result, list | tuple):
        raise TypeError(f"a list of tokens is wanted, not a {type(result).__name__}")
    return [int(token) for token in result]
