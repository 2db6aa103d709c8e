"""Reference, calls and probes of `dot-product-attention`."""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from regard.checking.trials import ANYTHING, Case, Draw, Probe, Trial, formula
from regard.exercises.shared.attention import Choices, attended, opened, past_lengths
from regard.exercises.shared.given import taken
from regard.exercises.shared.lengths import (
    WithLengths,
    dropout_probe,
    evaluated,
    large_scores,
    sums_to_one,
    weights_in_training,
)


def reference(
    case: Case, *, returned: str = "weights", beside: str = "weights", **choices: str
) -> tuple[Tensor, Tensor]:
    """Output and weights; with all weights dropped, any output will do."""
    c, (*inputs, lengths) = Choices(**choices), (*case.args, None)[:4]
    hidden = partial(past_lengths, lengths, c=c)
    heads, weights, scores = attended(c, *taken(c, *(x[:, None] for x in inputs)), hidden)
    past = hidden(scores)
    output, weights = opened(heads[:, 0], past, c), opened(weights[:, 0], past, c)
    if case.train:  # everything is dropped; a dropout written by hand divides 0 by 0
        output, weights = torch.full_like(output, ANYTHING), formula(returned, weights=weights)
    seen = scores if past is None else scores.masked_fill(past, -torch.inf)
    return output, formula(beside, weights=weights, scores=scores[:, 0], seen=seen[:, 0])


def given(draw: Draw, lengths: Tensor | None, dropout: float = 0.0, scale: float = 1.5) -> Case:
    queries, keys = draw.normal("batch", "query", "dim", scale=scale), draw.normal("batch", "key", "dim")
    args = (queries, keys, draw.normal("batch", "key", "value_dim"))
    return Case(args if lengths is None else (*args, lengths), init=(dropout,))


def all_dropped(draw: Draw) -> Case:
    return replace(CALLS.per_sequence(draw, dropout=1.0), train=True)


CALLS = WithLengths(given)
SIZES = {"batch": 2, "query": 3, "key": 7, "dim": 5, "value_dim": 11}

TRIALS = (
    *CALLS.trials(SIZES),
    Trial("one key", CALLS.per_sequence, {**SIZES, "key": 1}),
    Trial("all sizes alike", CALLS.per_sequence, dict.fromkeys(SIZES, 3)),
    Trial("queries of four numbers", CALLS.without, {**SIZES, "dim": 4}),
    Trial("a length of 0", CALLS.with_empty, SIZES, grad=False),
    # No lengths: a maximum over hidden keys too, with these scores, leaves nothing of the visible ones.
    large_scores(lambda draw: given(draw, None, scale=300.0), SIZES),
    evaluated(partial(CALLS.per_sequence, dropout=0.7), SIZES),
    weights_in_training(all_dropped, SIZES),
)

PROBES = (
    Probe("weights sum to one", lambda draw: (CALLS.per_query(draw),), SIZES, sums_to_one),
    *CALLS.probes(SIZES),
    dropout_probe(CALLS.dropped, {**SIZES, "batch": 3, "query": 11}),
)
