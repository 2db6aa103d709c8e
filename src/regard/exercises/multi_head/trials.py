"""Reference, calls and probes of `multi-head`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Probe, Trial
from regard.exercises.shared import attention
from regard.exercises.shared.attention import Choices, Layer, past_lengths
from regard.exercises.shared.lengths import DROPOUT, drops_something, drops_weights, lengths_of


def reference(case: Case, **choices: str) -> Tensor:
    """The output, or what one of the two helpers gives."""
    c, n_head = Choices(**choices), case.init[1]
    outside = c.split == "heads outside the sequences"
    if case.call == "transpose_qkv":
        heads = attention.split(case.args[0], n_head, c.split)
        return (heads.transpose(0, 1) if outside else heads).flatten(0, 1)
    if case.call == "transpose_output":
        heads = case.args[0].unflatten(0, (n_head, -1) if outside else (-1, n_head))
        return attention.merge(heads.transpose(0, 1) if outside else heads, c.merge)
    queries, keys, values, lengths = case.args
    layer = Layer(case.weights, n_head)
    return layer(c, queries, keys, values, lambda scores: past_lengths(lengths, scores, c))[0]


def layer(draw: Draw, *, bias: bool = False, dropout: float = 0.0, train: bool = False) -> Case:
    """A layer with random weights, not yet called with anything."""
    hiddens = draw["head"] * draw["head_dim"]
    weights = {f"W_{letter}.weight": draw.weight(hiddens, hiddens) * 1.5 for letter in "qkvo"}
    if bias:
        weights |= {f"W_{letter}.bias": draw.normal(hiddens, scale=0.5) for letter in "qkvo"}
    options = {"bias": True} if bias else {}
    return Case(init=(hiddens, draw["head"], dropout), init_kwargs=options, weights=weights, train=train)


def inputs(draw: Draw) -> tuple[Tensor, Tensor, Tensor]:
    hiddens = draw["head"] * draw["head_dim"]
    queries = draw.normal("batch", "query", hiddens)
    return queries, draw.normal("batch", "key", hiddens), draw.normal("batch", "key", hiddens)


def no_lengths(draw: Draw) -> Case:
    return layer(draw).with_args(*inputs(draw), None)


def per_sequence(draw: Draw) -> Case:
    return layer(draw).with_args(*inputs(draw), lengths_of(draw))


def per_query(draw: Draw) -> Case:
    return layer(draw).with_args(*inputs(draw), draw.integers(1, draw["key"], "batch", "query"))


def with_bias(draw: Draw) -> Case:
    return layer(draw, bias=True).with_args(*inputs(draw), lengths_of(draw))


def evaluated(draw: Draw) -> Case:
    return layer(draw, dropout=0.7).with_args(*inputs(draw), lengths_of(draw))


def split(draw: Draw) -> Case:
    x = draw.normal("batch", "key", draw["head"] * draw["head_dim"])
    return replace(layer(draw).with_args(x), call="transpose_qkv")


def joined(draw: Draw) -> Case:
    x = draw.normal(draw["batch"] * draw["head"], "key", "head_dim")
    return replace(layer(draw).with_args(x), call="transpose_output")


def padding_changed(draw: Draw) -> tuple[Case, ...]:
    base = per_sequence(draw)
    queries, keys, values, lengths = base.args
    beyond = (torch.arange(draw["key"]) >= lengths[:, None])[..., None]
    changed = (torch.where(beyond, x + 2.0, x) for x in (keys, values))
    return base, base.with_args(queries, *changed, lengths)


def neighbour_changed(draw: Draw) -> tuple[Case, ...]:
    base = per_sequence(draw)
    queries, keys, values, lengths = base.args
    other = [x.clone() for x in (queries, keys, values)]
    for x in other:
        x[0] = x[0].flip(-1)
    shorter = lengths.clone()
    shorter[0] = max(1, int(lengths[0]) - 1)
    return base, base.with_args(*other, shorter)


def query_changed(draw: Draw) -> tuple[Case, ...]:
    base = per_query(draw)
    queries = base.args[0].clone()
    queries[:, 0] = queries[:, 0].flip(-1) * 2
    return base, base.with_args(queries, *base.args[1:])


def dropped(draw: Draw) -> tuple[Case, ...]:
    """Identity projections and one-hot values, twice: the output is the weights after dropout, twice."""
    n_key = draw["key"]
    hiddens = 2 * n_key * draw["head"]
    case = layer(Draw({**draw.sizes, "head_dim": 2 * n_key}, 1), dropout=DROPOUT, train=True)
    weights = {f"W_{letter}.weight": torch.eye(hiddens) for letter in "qkvo"}
    values = torch.eye(n_key).repeat(1, 2 * draw["head"]).expand(draw["batch"], -1, -1).contiguous()
    queries = draw.normal("batch", "query", hiddens)
    keys = draw.normal("batch", "key", hiddens)
    trained = replace(case, weights=weights).with_args(queries, keys, values, None)
    return trained, replace(trained, train=False)


DROPPED = {"batch": 2, "query": 11, "key": 7, "head": 3}


SIZES = {"batch": 2, "query": 3, "key": 7, "head": 5, "head_dim": 2}

TRIALS = (
    Trial("no lengths", no_lengths, SIZES, variants=True),
    Trial("one length for each sequence", per_sequence, SIZES, variants=True),
    Trial("one length for each query", per_query, SIZES),
    Trial("batch of one", per_sequence, {**SIZES, "batch": 1}),
    Trial("as many sequences as heads", per_sequence, {**SIZES, "batch": 3, "head": 3}),
    Trial("one query", per_query, {**SIZES, "query": 1}),
    Trial("one head", per_sequence, {**SIZES, "head": 1, "head_dim": 3}),
    Trial("with biases", with_bias, {**SIZES, "head": 3}),
    Trial(
        "dropout in eval mode",
        evaluated,
        SIZES,
        kind="train mode",
        says="In eval mode dropout does nothing.",
    ),
    Trial("transpose_qkv", split, SIZES, optional=True),
    Trial("transpose_output", joined, SIZES, optional=True),
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
    Probe("dropout drops weights", dropped, DROPPED, partial(drops_weights, n_head=3), kind="train mode"),
)
