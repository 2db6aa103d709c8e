"""Reference, calls and probes of `masked-softmax`."""

from functools import partial

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Probe, Trial, formula, neighbour_probe
from regard.exercises.shared.attention import Choices, past_lengths, weighed
from regard.exercises.shared.lengths import (
    WithLengths,
    edited,
    large_scores,
    padding_probe,
    query_probe,
    sums_to_one,
)


def reference(case: Case, *, divided_by: str = "1", **choices: str) -> Tensor:
    """The weights of the scores that are given."""
    c, (scores, lengths) = Choices(**choices), case.args
    n_query, n_key = scores.shape[1:]
    scores = scores[:, None] / formula(divided_by, n_query=n_query, n_key=n_key)
    return weighed(scores, past_lengths(lengths, scores, c), c)[:, 0]


def given(draw: Draw, lengths: Tensor | None, shift: float = 0.0) -> Case:
    # Where there are no lengths None is given, because textbooks write the function without a default.
    return Case((draw.normal("batch", "query", "key", mean=shift), lengths))


def quarters(draw: Draw, lengths: Tensor | None) -> Case:
    """Scores that stay exact when a large number is added to them, which some answers do to hide."""
    return Case((draw.integers(-8, 8, "batch", "query", "key") / 4, lengths))


def change_padding(case: Case, draw: Draw, shift: float = 3.0) -> None:
    scores, lengths = case.args
    scores += shift * (torch.arange(draw["key"]) >= lengths[:, None, None])


CALLS = WithLengths(given)
SIZES = {"batch": 2, "query": 3, "key": 7}
MANY = {**SIZES, "batch": 3}
large_padding = edited(CALLS.per_sequence, partial(change_padding, shift=200.0))
LOW = "All scores are near -300 here: what hides must be far below them, as -inf is."
LARGE = "A softmax over all keys leaves 0 for the valid ones here: hide before the softmax."

TRIALS = (
    *CALLS.trials(SIZES),
    Trial("a length of 0", WithLengths(quarters).with_empty, {**MANY, "query": 2, "key": 5}, grad=False),
    Trial("low scores", partial(CALLS.per_sequence, shift=-300.0), SIZES, kind="fragile", says=LOW),
    Trial("large scores past the length", large_padding, SIZES, kind="fragile", says=LARGE),
    large_scores(partial(CALLS.per_sequence, shift=900.0), SIZES),
)

PROBES = (
    Probe("rows sum to one", lambda draw: (CALLS.per_query(draw),), SIZES, sums_to_one),
    padding_probe(CALLS.per_sequence, MANY, change_padding),
    neighbour_probe(CALLS.per_sequence, SIZES),
    query_probe(CALLS.per_query, SIZES),
)
