"""Reference, calls and probes of `masked-softmax`."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Probe, Trial, changed
from regard.exercises.shared.attention import Choices, past_lengths, weighed
from regard.exercises.shared.lengths import WithLengths, large_scores, lengths_of, sums_to_one


def reference(case: Case, **choices: str) -> Tensor:
    """The weights of the scores that are given."""
    c = Choices(**choices)
    scores, lengths = case.args
    scores = scores[:, None] / {
        "root of the number of keys": scores.shape[-1] ** 0.5,
        "the number of keys": scores.shape[-1],
        "root of the number of queries": scores.shape[-2] ** 0.5,
    }.get(c.scale, 1.0)
    return weighed(scores, past_lengths(lengths, scores, c), c)[:, 0]


def given(draw: Draw, lengths: Tensor | None, shift: float = 0.0) -> Case:
    # Where there are no lengths None is given, because textbooks write the function without a default.
    return Case((draw.normal("batch", "query", "key", mean=shift), lengths))


def with_empty(draw: Draw) -> Case:
    lengths = lengths_of(draw)
    lengths[0] = 0
    # Quarters stay exact when a large number is added to them, which some answers do to hide.
    return Case((draw.integers(-8, 8, "batch", "query", "key") / 4, lengths))


def change_padding(case: Case, draw: Draw, shift: float = 3.0) -> None:
    scores, lengths = case.args
    scores += shift * (torch.arange(draw["key"]) >= lengths[:, None, None])


def large_padding(draw: Draw) -> Case:
    case = CALLS.per_sequence(draw)
    change_padding(case, draw, 200.0)
    return case


CALLS = WithLengths(given)
SIZES = {"batch": 2, "query": 3, "key": 5}
WIDE = {"batch": 3, "query": 2, "key": 7}

TRIALS = (
    Trial("no lengths", CALLS.without, SIZES, variants=True),
    Trial("one length for each sequence", CALLS.per_sequence, WIDE, variants=True),
    Trial("one length for each query", CALLS.per_query, {**SIZES, "query": 5, "key": 7}, variants=True),
    Trial("batch of one", CALLS.per_sequence, {**SIZES, "batch": 1}),
    Trial("one query", CALLS.per_query, {**SIZES, "batch": 3, "query": 1}),
    Trial("as many queries as keys", CALLS.per_sequence, {**SIZES, "query": 5}),
    Trial("as many sequences as queries", CALLS.per_sequence, {**SIZES, "batch": 3}),
    Trial("a length of 0", with_empty, {**WIDE, "key": 5}, grad=False),
    Trial(
        "low scores",
        lambda draw: given(draw, lengths_of(draw), -300.0),
        SIZES,
        kind="fragile",
        says="All scores are near -300 here: what hides must be far below them, as -inf is.",
    ),
    Trial(
        "large scores past the length",
        large_padding,
        SIZES,
        kind="fragile",
        says="A softmax over all keys leaves 0 for the valid ones here: hide before the softmax.",
    ),
    large_scores(lambda draw: given(draw, lengths_of(draw), 900.0), SIZES),
)

PROBES = (
    Probe("rows sum to one", lambda draw: (CALLS.per_query(draw),), SIZES, sums_to_one),
    Probe(
        "padding has no say",
        changed(CALLS.per_sequence, change_padding),
        WIDE,
        says="scores past a sequence's length were changed: nothing may move.",
    ),
    Probe(
        "a neighbour's length has no say",
        changed(CALLS.per_sequence, lambda case, draw: case.args[1][0].sub_(1).clamp_(min=1)),
        WIDE,
        says="the length of sequence 0 was changed: sequences 1 and 2 may not move.",
    ),
    Probe(
        "a query stands alone",
        changed(CALLS.per_query, lambda case, draw: case.args[0][0, 0].mul_(-2)),
        SIZES,
        says="the scores of one query were changed: the other rows may not move.",
    ),
)
