"""Reference, calls and probes of `masked-softmax`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Probe, Trial
from regard.exercises.shared.attention import Choices, past_lengths, weighed


def reference(case: Case, **choices: str) -> Tensor:
    """The weights of the scores that are given."""
    c = Choices(**choices)
    scores, lengths = (*case.args, None)[:2]
    scores = scores[:, None]
    return weighed(scores, past_lengths(lengths, scores, c), c)[:, 0]


def no_lengths(draw: Draw) -> Case:
    # None is given, because textbooks write the function without a default.
    return Case((draw.normal("batch", "query", "key"), None))


def per_sequence(draw: Draw) -> Case:
    lens = draw.integers(1, draw["key"], "batch")
    if draw["batch"] > 1:  # two sequences of different length, or neighbours could not be told apart
        lens[0], lens[1] = max(1, draw["key"] // 2), draw["key"]
    return Case((draw.normal("batch", "query", "key"), lens))


def per_query(draw: Draw) -> Case:
    return Case((draw.normal("batch", "query", "key"), draw.integers(1, draw["key"], "batch", "query")))


def with_empty(draw: Draw) -> Case:
    lens = draw.integers(1, draw["key"], "batch")
    lens[0] = 0
    # Quarters stay exact when a large number is added to them, which some answers do to hide.
    return Case((draw.integers(-8, 8, "batch", "query", "key") / 4, lens))


def large_scores(draw: Draw) -> Case:
    case = per_sequence(draw)
    return case.with_args(case.args[0] + 900.0, case.args[1])


def low_scores(draw: Draw) -> Case:
    case = per_sequence(draw)
    return case.with_args(case.args[0] - 300.0, case.args[1])


def padding_changed(draw: Draw) -> tuple[Case, ...]:
    base = per_sequence(draw)
    scores, lens = base.args
    beyond = torch.arange(draw["key"]) >= lens[:, None, None]
    return base, base.with_args(torch.where(beyond, scores + 3.0, scores), lens)


def neighbour_changed(draw: Draw) -> tuple[Case, ...]:
    base = per_sequence(draw)
    scores, lens = base.args
    other = lens.clone()
    other[0] = max(1, int(lens[0]) - 1)
    return base, base.with_args(scores, other)


def query_changed(draw: Draw) -> tuple[Case, ...]:
    base = per_query(draw)
    scores = base.args[0].clone()
    scores[0, 0] = scores[0, 0].flip(0) * 2
    return base, base.with_args(scores, base.args[1])


def sums_to_one(results: list[Any]) -> str | None:
    total = results[0].double().sum(-1)
    if torch.allclose(total, torch.ones_like(total), atol=1e-5):
        return None
    return f"each row must sum to 1; yours sum to between {total.min():.4g} and {total.max():.4g}."


TRIALS = (
    Trial("no lengths", no_lengths, {"batch": 2, "query": 3, "key": 5}, variants=True),
    Trial("one length for each sequence", per_sequence, {"batch": 3, "query": 2, "key": 7}, variants=True),
    Trial("one length for each query", per_query, {"batch": 2, "query": 5, "key": 7}, variants=True),
    Trial("batch of one", per_sequence, {"batch": 1, "query": 3, "key": 5}),
    Trial("one query", per_query, {"batch": 3, "query": 1, "key": 5}),
    Trial("as many queries as keys", per_sequence, {"batch": 2, "query": 5, "key": 5}),
    Trial("as many sequences as queries", per_sequence, {"batch": 3, "query": 3, "key": 5}),
    Trial("a length of 0", with_empty, {"batch": 3, "query": 2, "key": 5}, grad=False),
    Trial(
        "low scores",
        low_scores,
        {"batch": 2, "query": 3, "key": 5},
        kind="fragile",
        says="All scores are near -300 here: what hides must be far below them, as -inf is.",
    ),
    Trial(
        "large scores",
        large_scores,
        {"batch": 2, "query": 3, "key": 5},
        kind="fragile",
        says="exp(900) is infinite: subtract the row's maximum first, as torch.softmax does.",
    ),
)

PROBES = (
    Probe(
        "rows sum to one",
        lambda draw: (per_query(draw),),
        {"batch": 2, "query": 3, "key": 5},
        sums_to_one,
    ),
    Probe(
        "padding has no say",
        padding_changed,
        {"batch": 3, "query": 2, "key": 7},
        says="scores past a sequence's length were changed: nothing may move.",
    ),
    Probe(
        "a neighbour's length has no say",
        neighbour_changed,
        {"batch": 3, "query": 2, "key": 7},
        says="the length of sequence 0 was changed: sequences 1 and 2 may not move.",
    ),
    Probe(
        "a query stands alone",
        query_changed,
        {"batch": 2, "query": 3, "key": 5},
        says="the scores of one query were changed: the other rows may not move.",
    ),
)
