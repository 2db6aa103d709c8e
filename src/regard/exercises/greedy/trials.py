"""The loop of `greedy`, and how tables are chosen for it."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from regard.checking.trials import Case, View
from regard.exercises.shared.search import Table, as_tokens


def searched(formulas: View, step: Callable[[list[int]], Tensor], first: int, max_new: int) -> list[int]:
    """All tokens, start and end among them."""
    tokens = [first]
    for _ in range(formulas.count(max_new)):
        token = int(formulas.takes(step(formulas.given(tokens)), tokens))
        if formulas.refuses(token, tokens):
            break
        tokens = [*tokens, token]
        if formulas.stops(token):
            break
    return tokens


def leads(table: Table, start: int, end: int, max_new: int, wanted: Callable[[list[int], int], bool]) -> bool:
    """Whether the path that a table leads, followed two steps beyond max_new, is as wanted."""
    # No row's best two may be so close that float16 would swap them.
    if any(sorted(row)[-1] - sorted(row)[-2] <= 0.05 for row in table.rows):
        return False
    tokens = [start]
    for _ in range(max_new + 2):
        logits = table.log_probabilities(tokens)
        tokens.append(logits.index(max(logits)))
    return wanted(tokens, end)


def view(case: Case, result: Any) -> list[int]:
    if isinstance(result, Tensor):
        raise TypeError("a list of tokens is wanted, not a tensor")
    return as_tokens(result)
