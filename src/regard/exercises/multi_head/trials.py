"""Reference, calls and probes of `multi-head`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Trial
from regard.exercises.shared import attention
from regard.exercises.shared.attention import Choices, Layer, past_lengths
from regard.exercises.shared.lengths import DROPOUT, WithLengths, dropout_probes, evaluated, lengths_of


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


def layer(draw: Draw, *args: Any, bias: bool = False, dropout: float = 0.0, call: str = "") -> Case:
    """A layer with random weights, called with these arguments."""
    hiddens = draw["head"] * draw["head_dim"]
    weights = {f"W_{letter}.weight": draw.weight(hiddens, hiddens) * 1.5 for letter in "qkvo"}
    if bias:
        weights |= {f"W_{letter}.bias": draw.normal(hiddens, scale=0.5) for letter in "qkvo"}
    options = {"bias": True} if bias else {}
    return Case(args, {}, call, (hiddens, draw["head"], dropout), options, weights)


def given(draw: Draw, lengths: Tensor | None, **options: Any) -> Case:
    hiddens = draw["head"] * draw["head_dim"]
    queries, keys, values = (draw.normal("batch", word, hiddens) for word in ("query", "key", "key"))
    return layer(draw, queries, keys, values, lengths, **options)


def split(draw: Draw) -> Case:
    return layer(draw, draw.normal("batch", "key", draw["head"] * draw["head_dim"]), call="transpose_qkv")


def joined(draw: Draw) -> Case:
    heads = draw.normal(draw["batch"] * draw["head"], "key", "head_dim")
    return layer(draw, heads, call="transpose_output")


def dropped(draw: Draw) -> Case:
    """Identity projections and one-hot values, twice: the output is the weights after dropout, twice."""
    hiddens = draw["head"] * draw["head_dim"]
    case = given(draw, None, dropout=DROPOUT)
    values = torch.eye(draw["key"]).repeat(1, 2 * draw["head"]).expand(draw["batch"], -1, -1).contiguous()
    weights = {name: torch.eye(hiddens) for name in case.weights}
    return replace(case, args=(*case.args[:2], values, None), weights=weights, train=True)


CALLS = WithLengths(given)
SIZES = {"batch": 2, "query": 3, "key": 7, "head": 5, "head_dim": 2}

TRIALS = (
    Trial("no lengths", CALLS.without, SIZES, variants=True),
    Trial("one length for each sequence", CALLS.per_sequence, SIZES, variants=True),
    Trial("one length for each query", CALLS.per_query, SIZES),
    Trial("batch of one", CALLS.per_sequence, {**SIZES, "batch": 1}),
    Trial("as many sequences as heads", CALLS.per_sequence, {**SIZES, "batch": 3, "head": 3}),
    Trial("as many queries as keys", CALLS.per_sequence, {**SIZES, "query": 7}),
    Trial("one query", CALLS.per_query, {**SIZES, "query": 1}),
    Trial("one head", CALLS.per_sequence, {**SIZES, "head": 1, "head_dim": 3}),
    Trial("with biases", lambda draw: given(draw, lengths_of(draw), bias=True), {**SIZES, "head": 3}),
    evaluated(lambda draw: given(draw, lengths_of(draw), dropout=0.7), SIZES),
    Trial("transpose_qkv", split, SIZES, optional=True),
    Trial("transpose_output", joined, SIZES, optional=True),
)

PROBES = (
    *CALLS.probes(SIZES),
    *dropout_probes(dropped, {"batch": 2, "query": 11, "key": 7, "head": 3, "head_dim": 14}, n_head=3),
)
