"""The search of `beam`, and how tables are chosen for it."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from regard.checking.trials import Case
from regard.exercises.shared.search import Table, as_tokens

Hypothesis = tuple[tuple[int, ...], float]
STYLES = ("stay", "aside", "wide", "shrink", "narrow", "first")


def search(
    grow: Callable[[Sequence[Hypothesis]], list[list[float]]],
    start: int,
    end: int | None,
    beam_size: int,
    max_new: int,
    style: str,
    keeps: Callable[[list[Hypothesis]], list[Hypothesis]] = lambda pool: pool,
) -> tuple[list[Hypothesis], list[Hypothesis]]:
    """The sequences that ended and those that did not, of which the best wins.

    `grow` gives the scores of sequences, each with every next token. Beam search is written in several ways.
    stay: finished sequences keep competing for a place. aside: they leave it to others, if among the best
    beam_size (wide: twice as many). shrink: their place stays empty, and the beam is narrower from then on
    (narrow). first: it stops when beam_size are finished, and prefers finished ones. hasty: it stops at the
    first that is finished, which is wrong.
    """
    live: list[Hypothesis] = [((start,), 0.0)]
    done: list[Hypothesis] = []
    width = beam_size
    for _ in range(max_new):
        pool = done if style == "stay" else []
        for (tokens, _), scores in zip(live, grow(live), strict=True):
            pool = pool + [((*tokens, token), score) for token, score in enumerate(scores)]
        pool = keeps(sorted(pool, key=lambda pair: pair[1], reverse=True))
        considered = pool[: 2 * beam_size if style == "wide" else width]
        ended = [pair for pair in considered if pair[0][-1] == end]
        going = pool if style in ("aside", "wide", "first") else considered
        live = [pair for pair in going if pair[0][-1] != end][:beam_size]
        done = ended if style == "stay" else done + ended
        if style == "narrow":
            width -= len(ended)
        enough = {"first": beam_size, "hasty": 1}.get(style)
        if not live or width < 1 or (enough is not None and len(done) >= enough):
            break
    return done, [] if style in ("first", "hasty") and done else live


def compared(
    table: Table,
    start: int,
    end: int,
    beam_size: int,
    max_new: int,
    wanted: Callable[[SimpleNamespace], bool],
) -> bool:
    """Whether all styles agree in a table, and the best is as wanted beside those of rivals."""

    def grow(live: Sequence[Hypothesis]) -> list[list[float]]:
        return [[so_far + value for value in table.log_probabilities(tokens)] for tokens, so_far in live]

    def best_of(width: int, style: str) -> Hypothesis:
        done, live = search(grow, start, end, width, max_new, style)
        return max(done + live, key=lambda pair: pair[1])

    best, *others = (best_of(beam_size, style) for style in STYLES)
    if beam_size > len(table.rows[0]) or any(other[0] != best[0] for other in others):
        return False
    rivals = {
        "greedy": best_of(1, "stay"),
        "hasty": best_of(beam_size, "hasty"),
        "one_more": best_of(beam_size + 1, "shrink"),
        "wider": best_of(5 * beam_size, "aside"),
    }
    return wanted(SimpleNamespace(best=best, tokens=best[0], end=end, **rivals))


def view(case: Case, result: Any) -> tuple[list[int], float]:
    """A sequence in any form, and a score as a number or a tensor of one."""
    if not isinstance(result, list | tuple) or len(result) != 2:
        raise TypeError("a pair of tokens and score is wanted")
    tokens, score = result
    if not isinstance(score, int | float | Tensor):
        raise TypeError("the score must be a number")
    return as_tokens(tokens), float(score)
