"""Reference, calls and probes of `beam`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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
    adds: str = "log-probabilities",
    keeps: str = "the best",
    ends: str = "at end",
    count: str = "max_new",
    given: str = "all",
    wins: str = "the best",
    score: str = "the sum",
) -> tuple[list[int], float]:
    """The best sequence and its score."""
    code, first, last, beam_size, max_new = case.args
    step = code.value()

    def grow(live: Sequence[Hypothesis]) -> list[list[float]]:
        logits = torch.stack([step(given_to_step(list(tokens), given)) for tokens, _ in live])
        values = {
            "logits": logits,
            "probabilities": logits.softmax(-1),
            "normalised over the beam": logits.log_softmax(0),
        }.get(adds, logits.log_softmax(-1))
        so_far = torch.tensor([score for _, score in live])
        scores: Tensor = values + (0.0 if adds == "the last alone" else so_far[:, None])
        if adds == "not that of the end":
            scores[:, last] = so_far
        return [[float(score) for score in row] for row in scores.tolist()]

    width = {"1": 1, "one more": beam_size + 1, "70": 70}.get(keeps, beam_size)
    n_new = max_new + {"one more": 1, "one less": -1}.get(count, 0)
    style = "hasty" if ends == "all at the first" else "shrink"
    stop = {"never": None, "at start": first}.get(ends, last)
    done, live = search(grow, first, stop, width, n_new, style, keeps)
    keys: dict[str, Callable[[Hypothesis], Any]] = {
        "the longest": lambda pair: (len(pair[0]), pair[1]),
        "the best mean": lambda pair: pair[1] / max(1, len(pair[0]) - 1),
        "the best mean, with the start": lambda pair: pair[1] / len(pair[0]),
    }
    if adds == "not that of the end, once it is taken":
        done = [(tokens, score - grow([(tokens[:-1], 0.0)])[0][last]) for tokens, score in done]
    rivals = live or done if wins == "an unfinished one" else done + live
    if wins == "a finished one":
        rivals = done or [((first,), 0.0)]
    best, total = max(rivals, key=keys.get(wins, lambda pair: pair[1]))
    tokens = list(best)
    shown = {
        "a mean": total / max(1, len(tokens) - 1),
        "a probability": math.exp(min(total, 50.0)),
        "a loss": -total,
    }
    if end == "without" and len(tokens) > 1 and tokens[-1] == last:
        tokens = tokens[:-1]
    if end == "always" and tokens[-1] != last:
        tokens.append(last)
    return (tokens if start == "with" else tokens[1:]), shown.get(score, total)


Hypothesis = tuple[tuple[int, ...], float]


def search(
    grow: Callable[[Sequence[Hypothesis]], list[list[float]]],
    start: int,
    end: int | None,
    beam_size: int,
    max_new: int,
    style: str,
    keeps: str = "the best",
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
        pool = sorted(pool, key=lambda pair: pair[1], reverse=keeps != "the worst")
        if keeps == "one of each":
            best_of: dict[Any, Hypothesis] = {}
            for pair in pool:
                best_of.setdefault(pair[0][:-1] if len(pair[0]) > 2 else pair[0][-1], pair)
            pool = list(best_of.values())
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


def found(table: Table, start: int, end: int, beam_size: int, max_new: int, style: str) -> Hypothesis:
    """The best sequence by a table, in one of the ways in which beam search is written."""

    def grow(live: Sequence[Hypothesis]) -> list[list[float]]:
        return [[so_far + value for value in table.log_probabilities(tokens)] for tokens, so_far in live]

    done, live = search(grow, start, end, beam_size, max_new, style)
    return max(done + live, key=lambda pair: pair[1])


STYLES = ("stay", "aside", "wide", "shrink", "narrow", "first")
Rivals = Mapping[str, Hypothesis]
Wanted = Callable[[Hypothesis, Rivals, int], bool]


def trial(
    name: str, wanted: Wanted, *, start: int = 1, end: int = 2, urge: float = 0.0, **sizes: int
) -> Trial:
    """A search in which all styles agree, and whose result is as wanted beside those of rivals."""
    meant = {"vocab": 7, "beam_size": 2, "max_new": 5, **sizes}

    def make(draw: Draw) -> Case:
        vocab, max_new, beam_size = draw["vocab"], draw["max_new"], min(draw["beam_size"], draw["vocab"])
        first, last = start % vocab, end % vocab

        def fits(table: Table) -> bool:
            best, *others = (found(table, first, last, beam_size, max_new, style) for style in STYLES)
            if any(other[0] != best[0] for other in others):
                return False
            rivals = {
                name: found(table, first, last, width, max_new, style)
                for name, width, style in (
                    ("greedy", 1, "stay"),
                    ("hasty", beam_size, "hasty"),
                    ("one more", beam_size + 1, "shrink"),
                    ("wider", 5 * beam_size, "aside"),
                )
            }
            return wanted(best, rivals, last)

        table = chosen(draw, meant, last, urge, fits)
        return Case((table.code(), first, last, beam_size, max_new))

    return Trial(name, make, meant, grad=False)


def beats_greedy(best: Hypothesis, rivals: Rivals, end: int) -> bool:
    return best[0] != rivals["greedy"][0] and best[0][-1] == end and len(best[0]) > 3


def misses_the_best(best: Hypothesis, rivals: Rivals, end: int) -> bool:
    """One beam more would find better, and many more better still."""
    scores = [rivals[name][1] for name in ("greedy", "one more", "wider")]
    return scores[0] + 0.01 < best[1] < scores[1] - 0.01 and scores[1] <= scores[2]


def loses_to_many(best: Hypothesis, rivals: Rivals, end: int) -> bool:
    more = max(best[1], rivals["one more"][1])
    return rivals["greedy"][1] + 0.01 < best[1] and more < rivals["wider"][1] - 0.01


def unfinished(best: Hypothesis, rivals: Rivals, end: int) -> bool:
    return end not in best[0] and best[0] != rivals["greedy"][0] and len(best[0]) > 2


def ends_at_once(best: Hypothesis, rivals: Rivals, end: int) -> bool:
    return len(best[0]) == 2 and best[0][-1] == end


def ends_late(best: Hypothesis, rivals: Rivals, end: int) -> bool:
    return best[0][-1] == end and len(best[0]) > 4


def beats_the_first_to_end(best: Hypothesis, rivals: Rivals, end: int) -> bool:
    return best[0] != rivals["hasty"][0]


def beaten_by_two(best: Hypothesis, rivals: Rivals, end: int) -> bool:
    return best[0] != rivals["one more"][0]


def anything(best: Hypothesis, rivals: Rivals, end: int) -> bool:
    return True


TRIALS = (
    trial("better than greedy", beats_greedy, urge=0.3),
    trial("a narrow beam misses the best", misses_the_best),
    trial("three beams miss the best", loses_to_many, beam_size=3),
    trial("the first to end is not the best", beats_the_first_to_end),
    trial("the end is not reached", unfinished, urge=-2.0),
    trial("the end comes at once", ends_at_once, urge=1.0, beam_size=3),
    trial("the end comes late", ends_late, max_new=4),
    trial("one beam is greedy", beaten_by_two, beam_size=1),
    trial("one token", anything, max_new=1),
    trial("the end is token 0", beats_greedy, start=3, end=0, urge=0.3),
    trial("as many beams as words", anything, vocab=5, beam_size=5, max_new=3),
)
