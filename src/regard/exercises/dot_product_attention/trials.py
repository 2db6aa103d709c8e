"""Reference, calls and probes of `dot-product-attention`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard.checking.trials import ANYTHING, Case, Draw, Probe, Trial
from regard.exercises.shared import attention
from regard.exercises.shared.attention import attended, opened, past_lengths
from regard.exercises.shared.lengths import (
    DROPOUT,
    drops_something,
    drops_weights,
    identity_values,
    lengths_of,
)


@dataclass(frozen=True)
class Choices(attention.Choices):
    """Attention of one head, and what is returned."""

    returned: str = "before dropout"
    beside: str = "weights"


def reference(case: Case, **choices: str) -> tuple[Tensor, Tensor]:
    """Output and weights; with all weights dropped, any output will do."""
    c = Choices(**choices)
    given = dict(zip(("queries", "keys", "values"), case.args, strict=True))
    lengths = case.kwargs.get("valid_lens")
    q, k, v = (given[name][:, None] for name in (c.query_from, c.key_from, c.value_from))
    heads, weights, scores = attended(c, q, k, v, lambda scores: past_lengths(lengths, scores, c))
    hidden = past_lengths(lengths, scores, c)
    output, beside = opened(heads[:, 0], hidden, c), opened(weights[:, 0], hidden, c)
    if case.train:  # everything is dropped; a dropout written by hand divides 0 by 0
        output = torch.full_like(output, ANYTHING)
        beside = beside if c.returned == "before dropout" else torch.zeros_like(beside)
    return output, scores[:, 0] if c.beside == "scores" else beside


def inputs(draw: Draw) -> tuple[Tensor, Tensor, Tensor]:
    queries, keys = draw.normal("batch", "query", "dim", scale=1.5), draw.normal("batch", "key", "dim")
    return queries, keys, draw.normal("batch", "key", "value_dim")


def no_lengths(draw: Draw) -> Case:
    return Case(inputs(draw), init=(0.0,))


def per_sequence(draw: Draw) -> Case:
    return Case(inputs(draw), {"valid_lens": lengths_of(draw)}, init=(0.0,))


def per_query(draw: Draw) -> Case:
    lengths = draw.integers(1, draw["key"], "batch", "query")
    return Case(inputs(draw), {"valid_lens": lengths}, init=(0.0,))


def all_valid(draw: Draw) -> Case:
    return Case(inputs(draw), {"valid_lens": torch.full((draw["batch"],), draw["key"])}, init=(0.0,))


def with_empty(draw: Draw) -> Case:
    lengths = lengths_of(draw)
    lengths[0] = 0
    return Case(inputs(draw), {"valid_lens": lengths}, init=(0.0,))


def large_scores(draw: Draw) -> Case:
    """Whole numbers, and a scale of 2: the scores are exact in float32, and exp of them is infinite."""
    queries, keys = draw.integers(-15, 15, "batch", "query", 4), draw.integers(-15, 15, "batch", "key", 4)
    values = draw.normal("batch", "key", "value_dim")
    # No lengths: a maximum over hidden keys too, with these scores, leaves nothing of the visible ones.
    return Case((queries.float(), keys.float(), values), init=(0.0,))


def evaluated(draw: Draw) -> Case:
    return replace(per_sequence(draw), init=(0.7,))


def all_dropped(draw: Draw) -> Case:
    return replace(per_sequence(draw), init=(1.0,), train=True)


def dropped(draw: Draw) -> tuple[Case, ...]:
    queries, keys, _ = inputs(draw)
    trained = Case((queries, keys, identity_values(draw)), init=(DROPOUT,), train=True)
    return trained, replace(trained, train=False)


def padding_changed(draw: Draw) -> tuple[Case, ...]:
    base = per_sequence(draw)
    queries, keys, values = base.args
    beyond = (torch.arange(draw["key"]) >= base.kwargs["valid_lens"][:, None])[..., None]
    return base, base.with_args(queries, *(torch.where(beyond, x + 2.0, x) for x in (keys, values)))


def neighbour_changed(draw: Draw) -> tuple[Case, ...]:
    base = per_sequence(draw)
    other = [x.clone() for x in base.args]
    for x in other:
        x[0] += 1.0
    shorter = base.kwargs["valid_lens"].clone()
    shorter[0] = max(1, int(shorter[0]) - 1)
    return base, replace(base.with_args(*other), kwargs={"valid_lens": shorter})


def query_changed(draw: Draw) -> tuple[Case, ...]:
    base = per_query(draw)
    queries = base.args[0].clone()
    queries[:, 0] *= -2
    return base, base.with_args(queries, *base.args[1:])


def sums_to_one(results: list[Any]) -> str | None:
    total = results[0][1].double().sum(-1)
    if torch.allclose(total, torch.ones_like(total), atol=1e-5):
        return None
    return (
        f"the weights of a query must sum to 1; yours sum to between {total.min():.4g} and {total.max():.4g}."
    )


SIZES = {"batch": 2, "query": 3, "key": 7, "dim": 5, "value_dim": 11}


DROPPED = {"batch": 3, "query": 11, "key": 7, "dim": 5, "value_dim": 2}

TRIALS = (
    Trial("no lengths", no_lengths, SIZES, variants=True),
    Trial("one length for each sequence", per_sequence, SIZES, variants=True),
    Trial("one length for each query", per_query, SIZES, variants=True),
    Trial("every key valid", all_valid, SIZES),
    Trial("batch of one", per_sequence, {**SIZES, "batch": 1}),
    Trial("one query", per_query, {**SIZES, "query": 1}),
    Trial("one key", per_sequence, {**SIZES, "key": 1}),
    Trial("all sizes alike", per_sequence, dict.fromkeys(SIZES, 3)),
    Trial("a length of 0", with_empty, SIZES, grad=False),
    Trial(
        "large scores",
        large_scores,
        SIZES,
        grad=False,
        kind="fragile",
        says="exp(200) is infinite: subtract the row's maximum first, as torch.softmax does.",
    ),
    Trial(
        "dropout in eval mode",
        evaluated,
        SIZES,
        kind="train mode",
        says="In eval mode dropout does nothing.",
    ),
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
    Probe("weights sum to one", lambda draw: (per_query(draw),), SIZES, sums_to_one),
    Probe(
        "padding has no say",
        padding_changed,
        SIZES,
        says="keys and values past a sequence's length were changed: nothing may move.",
    ),
    Probe(
        "a neighbour has no say",
        neighbour_changed,
        {**SIZES, "batch": 3},
        says="sequence 0 was changed: the others may not move.",
    ),
    Probe(
        "a query stands alone",
        query_changed,
        SIZES,
        says="query 0 was changed: the rows of the others may not move.",
    ),
    Probe("dropout in train mode", dropped, DROPPED, drops_something, kind="train mode"),
    Probe("dropout drops weights", dropped, DROPPED, drops_weights, kind="train mode"),
)
