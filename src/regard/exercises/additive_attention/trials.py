"""Reference, calls and probes of `additive-attention`."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import linear

from regard.checking.trials import ANYTHING, Case, Draw, Probe, Trial, made
from regard.exercises.shared import attention
from regard.exercises.shared.attention import opened, past_lengths, weighed
from regard.exercises.shared.lengths import (
    DROPOUT,
    drops_something,
    drops_weights,
    identity_values,
    lengths_of,
)
from regard.exercises.shared.recurrent import ACTIVATIONS


@dataclass(frozen=True)
class Choices(attention.Choices):
    """What attention decides after its scores, and how they are made here."""

    returns: str = "output"
    activation: str = "tanh"
    pairs: str = "added"
    by: str = "w_v"


def scored(c: Choices, q: Tensor, k: Tensor, w_v: Tensor) -> Tensor:
    """Scores (batch, 1, query, key) of projected queries and keys."""
    act = ACTIVATIONS[c.activation]
    each_q, each_k = q[:, :, None], k[:, None]
    features = made(
        {
            "added": lambda: act(each_q + each_k),
            "multiplied": lambda: act(each_q * each_k),
            "subtracted": lambda: act(each_q - each_k),
            "tanh of each": lambda: act(each_q) + act(each_k),
            "keys with queries": lambda: act(q[:, None] + k[:, :, None]),
        },
        c.pairs,
    )
    root = q.shape[-1] ** 0.5
    scores = made(
        {
            "w_v": lambda: features @ w_v,
            "tanh after w_v": lambda: act((each_q + each_k) @ w_v),
            "w_v over the root of num_hiddens": lambda: features @ w_v / root,
            "a sum": lambda: features.sum(-1),
            "a mean": lambda: features.mean(-1),
            "dot products": lambda: q @ k.transpose(1, 2),
            "scaled dot products": lambda: q @ k.transpose(1, 2) / root,
        },
        c.by,
    )
    return scores[:, None]


def reference(case: Case, **choices: str) -> Tensor | None:
    """The output, or the weights where they are returned."""
    c = Choices(**choices)
    what, queries, keys, values, lengths = case.args
    w_q, w_k, w_v = (case.weights[f"{name}.weight"] for name in ("W_q", "W_k", "w_v"))
    by = {"q": w_q, "k": w_k}
    scores = scored(c, linear(queries, by[c.query_by]), linear(keys, by[c.key_by]), w_v[0])
    hidden = past_lengths(lengths, scores, c)
    weights = weighed(scores, hidden, c)[:, 0]
    output = (weights.transpose(1, 2) if c.weights == "transposed" else weights) @ (
        keys if c.value_from == "keys" else values
    )
    if what == "weights":
        return None if c.returns == "output" else weights
    if case.train:  # the judge of dropout says more than a comparison
        return torch.full_like(output, ANYTHING)
    return opened(output, hidden, c)


def layer(draw: Draw, *, dropout: float = 0.0, train: bool = False) -> Case:
    weights = {
        "W_q.weight": draw.weight("hidden", "query_dim"),
        "W_k.weight": draw.weight("hidden", "key_dim"),
        "w_v.weight": draw.normal(1, "hidden", scale=1.5),
    }
    return Case(init=(draw["hidden"], dropout), weights=weights, train=train)


def inputs(draw: Draw) -> tuple[Tensor, Tensor, Tensor]:
    queries, keys = draw.normal("batch", "query", "query_dim"), draw.normal("batch", "key", "key_dim")
    return queries, keys, draw.normal("batch", "key", "value_dim")


def no_lengths(draw: Draw) -> Case:
    return layer(draw).with_args("output", *inputs(draw), None)


def per_sequence(draw: Draw) -> Case:
    return layer(draw).with_args("output", *inputs(draw), lengths_of(draw))


def per_query(draw: Draw) -> Case:
    lengths = draw.integers(1, draw["key"], "batch", "query")
    return layer(draw).with_args("output", *inputs(draw), lengths)


def all_valid(draw: Draw) -> Case:
    return layer(draw).with_args("output", *inputs(draw), torch.full((draw["batch"],), draw["key"]))


def with_empty(draw: Draw) -> Case:
    lengths = lengths_of(draw)
    lengths[0] = 0
    return layer(draw).with_args("output", *inputs(draw), lengths)


def the_weights(draw: Draw) -> Case:
    return layer(draw).with_args("weights", *inputs(draw), lengths_of(draw))


def evaluated(draw: Draw) -> Case:
    return replace(per_sequence(draw), init=(draw["hidden"], 0.7))


def dropped(draw: Draw) -> tuple[Case, ...]:
    queries, keys, _ = inputs(draw)
    trained = layer(draw, dropout=DROPOUT, train=True).with_args(
        "output", queries, keys, identity_values(draw), None
    )
    return trained, replace(trained, train=False)


def padding_changed(draw: Draw) -> tuple[Case, ...]:
    base = per_sequence(draw)
    what, queries, keys, values, lengths = base.args
    beyond = (torch.arange(draw["key"]) >= lengths[:, None])[..., None]
    return base, base.with_args(
        what, queries, *(torch.where(beyond, x + 2.0, x) for x in (keys, values)), lengths
    )


def neighbour_changed(draw: Draw) -> tuple[Case, ...]:
    base = per_sequence(draw)
    what, *tensors = base.args
    other = [x.clone() for x in tensors]
    for x in other[:3]:
        x[0] += 1.0
    other[3][0] = max(1, int(other[3][0]) - 1)
    return base, base.with_args(what, *other)


def query_changed(draw: Draw) -> tuple[Case, ...]:
    base = per_query(draw)
    queries = base.args[1].clone()
    queries[:, 0] *= -2
    return base, base.with_args("output", queries, *base.args[2:])


SIZES = {"batch": 2, "query": 3, "key": 7, "hidden": 5, "query_dim": 11, "key_dim": 13, "value_dim": 17}


ALIKE = {**SIZES, "query": 5, "key": 5, "query_dim": 5, "key_dim": 5}


DROPPED = {**SIZES, "batch": 3, "query": 11}

TRIALS = (
    Trial("no lengths", no_lengths, SIZES, variants=True),
    Trial("one length for each sequence", per_sequence, SIZES, variants=True),
    Trial("one length for each query", per_query, SIZES, variants=True),
    Trial("every key valid", all_valid, SIZES),
    Trial("batch of one", per_sequence, {**SIZES, "batch": 1}),
    Trial("one query", per_query, {**SIZES, "query": 1}),
    Trial("as many queries as keys, all of one size", per_sequence, ALIKE),
    Trial("as many sequences as queries", per_sequence, {**ALIKE, "batch": 5}),
    Trial("a length of 0", with_empty, SIZES, grad=False),
    Trial("weights, where they are returned", the_weights, SIZES, grad=False),
    Trial(
        "dropout in eval mode",
        evaluated,
        SIZES,
        kind="train mode",
        says="In eval mode dropout does nothing.",
    ),
)

PROBES = (
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
        says="query 0 was changed: the outputs of the others may not move.",
    ),
    Probe("dropout in train mode", dropped, DROPPED, drops_something, kind="train mode"),
    Probe("dropout drops weights", dropped, DROPPED, drops_weights, kind="train mode"),
)
