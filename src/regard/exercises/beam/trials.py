"""Reference, calls and probes of `beam`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from regard.checking.trials import Case, Draw, Trial
from regard.exercises.shared.search import Hypothesis, Table, as_tokens, chosen, given_to_step


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
    live: list[tuple[list[int], float]] = [([first], 0.0)]
    done: list[tuple[list[int], float]] = []
    width = {"1": 1, "one more": beam_size + 1, "70": 70}.get(keeps, beam_size)
    for _ in range(max_new + {"one more": 1, "one less": -1}.get(count, 0)):
        grown = []
        for tokens, so_far in live:
            logits = step(given_to_step(tokens, given))
            values = {"logits": logits, "probabilities": logits.softmax(-1)}.get(adds, logits.log_softmax(-1))
            base = 0.0 if adds == "the last alone" else so_far
            for token, value in enumerate(values.tolist()):
                free = adds == "not that of the end" and token == last
                grown.append(([*tokens, token], base + (0.0 if free else value)))
        grown.sort(key=lambda pair: pair[1], reverse=keeps != "the worst")
        if keeps == "one of each":
            best_of: dict[Any, tuple[list[int], float]] = {}
            for pair in grown:
                best_of.setdefault(tuple(pair[0][:-1]) if len(live) > 1 else pair[0][-1], pair)
            grown = list(best_of.values())
        kept = grown[:width]
        done += [pair for pair in kept if ends != "never" and pair[0][-1] == last]
        live = [pair for pair in kept if ends == "never" or pair[0][-1] != last]
        if not live or (ends == "all at the first" and done):
            break
    choice = live or done if wins == "an unfinished one" else done + live
    if ends == "all at the first":
        choice = done or live
    keys: dict[str, Callable[[tuple[list[int], float]], Any]] = {
        "the longest": lambda pair: (len(pair[0]), pair[1]),
        "the best mean": lambda pair: pair[1] / max(1, len(pair[0]) - 1),
    }
    tokens, total = max(choice, key=keys.get(wins, lambda pair: pair[1]))
    shown = {
        "a mean": total / max(1, len(tokens) - 1),
        "a probability": math.exp(min(total, 50.0)),
        "a loss": -total,
    }
    if end == "without" and len(tokens) > 1 and tokens[-1] == last:
        tokens = tokens[:-1]
    return (tokens if start == "with" else tokens[1:]), shown.get(score, total)


def view(case: Case, result: Any) -> tuple[list[int], float]:
    """A sequence in any form, and a score as a number or a tensor of one."""
    if not isinstance(result, list | tuple) or len(result) != 2:
        raise TypeError("a pair of tokens and score is wanted")
    tokens, score = result
    if not isinstance(score, int | float | Tensor):
        raise TypeError("the score must be a number")
    return as_tokens(tokens), float(score)


def found(table: Table, start: int, end: int, beam_size: int, max_new: int, style: str) -> Hypothesis:
    """The best sequence in one of the ways in which beam search is written.

    stay: finished ones keep competing for a place. aside: they leave it to others, if among the best
    beam_size (wide: twice as many). shrink: their place stays empty, and the beam is narrower from then on
    (narrow). first: it stops when beam_size are finished, and prefers finished ones. hasty: it stops at the
    first that is finished, which is wrong.
    """
    live: list[Hypothesis] = [((start,), 0.0)]
    done: list[Hypothesis] = []
    width = beam_size
    for _ in range(max_new):
        grown = [
            ((*tokens, token), score + value)
            for tokens, score in live
            for token, value in enumerate(table.log_probabilities(tokens))
        ]
        pool = sorted(grown + done if style == "stay" else grown, key=lambda each: -each[1])
        considered = pool[: 2 * beam_size if style == "wide" else width]
        ended = [each for each in considered if each[0][-1] == end]
        going = pool if style in ("aside", "wide", "first") else considered
        live = [each for each in going if each[0][-1] != end][:beam_size]
        done = ended if style == "stay" else done + ended
        if style == "narrow":
            width -= len(ended)
        enough = {"first": beam_size, "hasty": 1}.get(style)
        if not live or width < 1 or (enough is not None and len(done) >= enough):
            break
    if style in ("first", "hasty") and done:
        live = []
    return max(done + live, key=lambda each: each[1])


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
            ways = [found(table, first, last, beam_size, max_new, style) for style in STYLES]
            if any(way[0] != ways[0][0] for way in ways):
                return False
            rivals = {
                "greedy": found(table, first, last, 1, max_new, "stay"),
                "hasty": found(table, first, last, beam_size, max_new, "hasty"),
                "one more": found(table, first, last, beam_size + 1, max_new, "shrink"),
                "wider": found(table, first, last, 5 * beam_size, max_new, "aside"),
            }
            return wanted(ways[0], rivals, last)

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
