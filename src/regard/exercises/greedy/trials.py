"""Reference, calls and probes of `greedy`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Trial
from regard.exercises.shared.search import Table, as_tokens, chosen, given_to_step


def reference(
    case: Case,
    *,
    start: str = "with",
    end: str = "with",
    stops: str = "at end",
    count: str = "max_new",
    takes: str = "the likeliest",
    given: str = "all",
    returned: str = "a list",
) -> Any:
    """The tokens, with start and end token as the conventions say."""
    code, first, last, max_new = case.args
    step, tokens = code.value(), [first]
    for _ in range(max_new + {"one more": 1, "one less": -1}.get(count, 0)):
        logits = step(given_to_step(tokens, given)).tolist()
        forbidden = {
            "not the end": [last],
            "not the start": [first],
            "not one that was taken": tokens,
            "not the newest": tokens[-1:],
        }
        for token in forbidden.get(takes, []):
            logits[token] = -100.0
        ranked = sorted(range(len(logits)), key=lambda token: -logits[token])
        token = {
            "the least likely": ranked[-1],
            "the second": ranked[1],
            "the largest by size": max(ranked, key=lambda token: abs(logits[token])),
            "the logit": abs(int(max(logits))) % len(logits),
        }.get(takes, ranked[0])
        if stops == "at a repeat" and token in tokens:
            break
        tokens.append(token)
        if stops != "never" and token == (first if stops == "at start" else last):
            break
    if returned == "the last":
        return tokens[-1:]
    if returned == "a tensor":
        return torch.tensor(tokens)
    if end == "without" and len(tokens) > 1 and tokens[-1] == last:
        tokens = tokens[:-1]
    if end == "always" and tokens[-1] != last:
        tokens.append(last)
    return tokens if start == "with" else tokens[1:]


def view(case: Case, result: Any) -> list[int]:
    if isinstance(result, Tensor):
        raise TypeError("a list of tokens is wanted, not a tensor")
    return as_tokens(result)


def path(table: Table, start: int, n_step: int) -> list[int]:
    """The likeliest tokens, whether or not one of them is the end."""
    tokens = [start]
    for _ in range(n_step):
        logits = table.log_probabilities(tokens)
        tokens.append(logits.index(max(logits)))
    return tokens


def apart(table: Table) -> bool:
    """Whether no row's best two are so close that float16 would swap them."""
    return all(sorted(row)[-1] - sorted(row)[-2] > 0.05 for row in table.rows)


def trial(
    name: str,
    wanted: Callable[[list[int], int], bool],
    *,
    start: int = 1,
    end: int = 2,
    urge: float = 0.0,
    **sizes: int,
) -> Trial:
    """A search whose path, followed two steps beyond max_new, is as wanted."""
    meant = {"vocab": 7, "max_new": 6, **sizes}

    def make(draw: Draw) -> Case:
        first, last, max_new = start % draw["vocab"], end % draw["vocab"], draw["max_new"]

        def fits(table: Table) -> bool:
            return apart(table) and wanted(path(table, first, max_new + 2), last)

        return Case((chosen(draw, meant, last, urge, fits).code(), first, last, max_new))

    return Trial(name, make, meant, grad=False)


def ends_early(tokens: list[int], end: int) -> bool:
    """It ends after some tokens and with room left, and goes on differently if it is not stopped."""
    return end in tokens[3:-3] and end not in tokens[:3] and len(set(tokens)) > 2


def never_ends(tokens: list[int], end: int) -> bool:
    return end not in tokens and len(set(tokens[1:])) > 2


def ends_at_once(tokens: list[int], end: int) -> bool:
    return tokens[1] == end and end not in tokens[2:4]


def ends_last(tokens: list[int], end: int) -> bool:
    """The last token that may be appended is the end."""
    return tokens[-3] == end and end not in tokens[:-3]


def ends_just_too_late(tokens: list[int], end: int) -> bool:
    """One token more would be the end."""
    return tokens[-2] == end and end not in tokens[:-2]


def start_comes_again(tokens: list[int], end: int) -> bool:
    """The start token is met again on the way."""
    return tokens[0] in tokens[2:-3] and end not in tokens


TRIALS = (
    trial("the end is reached", ends_early, urge=0.5),
    trial("the end is never reached", never_ends, urge=-1.0),
    trial("the end comes at once", ends_at_once, urge=0.5, vocab=5, max_new=4),
    trial("the end comes last", ends_last, max_new=5),
    trial("the end comes too late", ends_just_too_late, max_new=4),
    trial("the start comes again", start_comes_again, urge=-2.0),
    trial("one token", never_ends, urge=-1.0, vocab=11, max_new=1),
    trial("the end is token 0", ends_early, start=3, end=0, urge=0.5),
    trial("the start is token 0", ends_early, start=0, end=6, urge=0.5),
)
