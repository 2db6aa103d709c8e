"""Reference, calls and probes of `dot-product-attention`."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.checking.trials import ANYTHING, Case, Draw, Probe, Trial
from regard.exercises.shared import attention
from regard.exercises.shared.attention import attended, opened, past_lengths
from regard.exercises.shared.lengths import (
    DROPOUT,
    WithLengths,
    dropout_probes,
    evaluated,
    identity_values,
    large_scores,
    lengths_of,
    sums_to_one,
)


@dataclass(frozen=True)
class Choices(attention.Choices):
    """Attention of one head, and what is returned."""

    returned: str = "before dropout"
    beside: str = "weights"


def reference(case: Case, **choices: str) -> tuple[Tensor, Tensor]:
    """Output and weights; with all weights dropped, any output will do."""
    c = Choices(**choices)
    *inputs, lengths = (*case.args, None)[:4]
    by_name = dict(zip(("queries", "keys", "values"), inputs, strict=True))
    q, k, v = (by_name[name][:, None] for name in (c.query_from, c.key_from, c.value_from))
    heads, weights, scores = attended(c, q, k, v, lambda scores: past_lengths(lengths, scores, c))
    hidden = past_lengths(lengths, scores, c)
    output, beside = opened(heads[:, 0], hidden, c), opened(weights[:, 0], hidden, c)
    if case.train:  # everything is dropped; a dropout written by hand divides 0 by 0
        output = torch.full_like(output, ANYTHING)
        beside = beside if c.returned == "before dropout" else torch.zeros_like(beside)
    if c.beside == "hidden scores" and hidden is not None:
        scores = scores.masked_fill(hidden, -torch.inf)
    return output, beside if c.beside == "weights" else scores[:, 0]


def given(draw: Draw, lengths: Tensor | None, dropout: float = 0.0) -> Case:
    queries, keys = draw.normal("batch", "query", "dim", scale=1.5), draw.normal("batch", "key", "dim")
    args = (queries, keys, draw.normal("batch", "key", "value_dim"))
    return Case(args if lengths is None else (*args, lengths), init=(dropout,))


def whole_numbers(draw: Draw) -> Case:
    """A scale of 2, too: the scores are exact in float32, and exp of them is infinite."""
    queries, keys = draw.integers(-15, 15, "batch", "query", 4), draw.integers(-15, 15, "batch", "key", 4)
    values = draw.normal("batch", "key", "value_dim")
    # No lengths: a maximum over hidden keys too, with these scores, leaves nothing of the visible ones.
    return Case((queries.float(), keys.float(), values), init=(0.0,))


def all_dropped(draw: Draw) -> Case:
    return replace(given(draw, lengths_of(draw), 1.0), train=True)


def dropped(draw: Draw) -> Case:
    case = given(draw, None, DROPOUT)
    return replace(case, args=(*case.args[:2], identity_values(draw)), train=True)


CALLS = WithLengths(given)
SIZES = {"batch": 2, "query": 3, "key": 7, "dim": 5, "value_dim": 11}

TRIALS = (
    Trial("no lengths", CALLS.without, SIZES, variants=True),
    Trial("one length for each sequence", CALLS.per_sequence, SIZES, variants=True),
    Trial("one length for each query", CALLS.per_query, SIZES, variants=True),
    Trial("every key valid", CALLS.all_valid, SIZES),
    Trial("batch of one", CALLS.per_sequence, {**SIZES, "batch": 1}),
    Trial("one query", CALLS.per_query, {**SIZES, "query": 1}),
    Trial("one key", CALLS.per_sequence, {**SIZES, "key": 1}),
    Trial("all sizes alike", CALLS.per_sequence, dict.fromkeys(SIZES, 3)),
    Trial("a length of 0", CALLS.with_empty, SIZES, grad=False),
    large_scores(whole_numbers, SIZES),
    evaluated(lambda draw: given(draw, lengths_of(draw), 0.7), SIZES),
    Trial(
        "weights in train mode",
        all_dropped,
        SIZES,
        grad=False,
        kind="train mode",
        says="With dropout 1 the weights before dropout are what they were.",
    ),
)

PROBES = (
    Probe("weights sum to one", lambda draw: (CALLS.per_query(draw),), SIZES, sums_to_one),
    *CALLS.probes(SIZES),
    *dropout_probes(dropped, {**SIZES, "batch": 3, "query": 11}),
)
