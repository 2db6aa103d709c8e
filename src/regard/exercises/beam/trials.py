"""Reference, calls and probes of `beam`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.checking.trials import Case, Trial, formula, worked
from regard.exercises.shared.search import RETURNED, Table, as_tokens, search_trial

Hypothesis = tuple[tuple[int, ...], float]

BEST = {
    "ended": "done",
    "rivals": "ended + live",
    "wins": "lambda tokens, score: score",
    "best": "max(rivals, key=lambda pair: wins(*pair))",
    "tokens": "list(best[0])",
    "total": "best[1]",
    "score": "total",
    **RETURNED,
    "result": "start, score",
}


def reference(
    case: Case,
    *,
    given: str = "tokens",
    adds: str = "so_far + logits.log_softmax(-1)",
    width: str = "beam_size",
    count: str = "max_new",
    stop: str = "last",
    keeps: str = "pool",
    style: str = "shrink",
    **choices: str,
) -> Any:
    """The best sequence and its score."""
    code, first, last, beam_size, max_new = case.args
    step = code.value()

    def grow(live: Sequence[Hypothesis]) -> list[list[float]]:
        logits = torch.stack([step(formula(given, tokens=list(tokens))) for tokens, _ in live])
        so_far = torch.tensor([[score] for _, score in live])
        scores: list[list[float]] = formula(adds, so_far=so_far, logits=logits, last=last).tolist()
        return scores

    def origin(pair: Hypothesis) -> object:
        """What a sequence was grown from; of the first tokens, themselves."""
        return pair[0][:-1] if len(pair[0]) > 2 else pair[0][-1]

    def kept(pool: list[Hypothesis]) -> Any:
        return formula(keeps, pool=pool, origin=origin)

    n_beam, n_new = formula(width, beam_size=beam_size), formula(count, max_new=max_new)
    done, live = search(grow, first, formula(stop, first=first, last=last), n_beam, n_new, style, kept)
    return worked(BEST, choices, done=done, live=live, grow=grow, first=first, last=last, math=math)


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


def view(case: Case, result: Any) -> tuple[list[int], float]:
    """A sequence in any form, and a score as a number or a tensor of one."""
    if not isinstance(result, list | tuple) or len(result) != 2:
        raise TypeError("a pair of tokens and score is wanted")
    tokens, score = result
    if not isinstance(score, int | float | Tensor):
        raise TypeError("the score must be a number")
    return as_tokens(tokens), float(score)


STYLES = ("stay", "aside", "wide", "shrink", "narrow", "first")


def trial(name: str, wanted: str, urge: float = 0.0, start: int = 1, end: int = 2, **sizes: int) -> Trial:
    """A search in which all styles agree, and whose result is as wanted beside those of rivals."""

    def fits(table: Table, start: int, end: int, beam_size: int, max_new: int) -> bool:
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
        return bool(formula(wanted, best=best, tokens=best[0], end=end, **rivals))

    meant = {"vocab": 7, "beam_size": 2, "max_new": 5, **sizes}
    return search_trial(name, fits, meant, start=start, end=end, urge=urge)


BEATS_GREEDY = "best[0] != greedy[0] and tokens[-1] == end and len(tokens) > 3"
# One beam more would find better, and many more better still.
MISSES = "greedy[1] + 0.01 < best[1] < one_more[1] - 0.01 and one_more[1] <= wider[1]"
LOSES_TO_MANY = "greedy[1] + 0.01 < best[1] and max(best[1], one_more[1]) < wider[1] - 0.01"
UNFINISHED = "end not in tokens and best[0] != greedy[0] and len(tokens) > 2"

TRIALS = (
    trial("better than greedy", BEATS_GREEDY, 0.3),
    trial("a narrow beam misses the best", MISSES),
    trial("three beams miss the best", LOSES_TO_MANY, beam_size=3),
    trial("the first to end is not the best", "best[0] != hasty[0]"),
    trial("the end is not reached", UNFINISHED, -2.0),
    trial("the end comes at once", "len(tokens) == 2 and tokens[-1] == end", 1.0, beam_size=3),
    trial("the end comes late", "tokens[-1] == end and len(tokens) > 4", max_new=4),
    trial("one beam is greedy", "best[0] != one_more[0]", beam_size=1),
    trial("one token", "True", max_new=1),
    trial("the end is token 0", BEATS_GREEDY, 0.3, start=3, end=0),
    trial("as many beams as words", "True", vocab=5, beam_size=5, max_new=3),
)
