"""Reference, calls and probes of `multi-head`."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Trial, formula
from regard.exercises.shared import attention
from regard.exercises.shared.attention import Choices, Layer, past_lengths
from regard.exercises.shared.lengths import WithLengths, dropout_probe, evaluated


def reference(case: Case, *, joint: str = "heads", **choices: str) -> Tensor:
    """The output, or what one of the two helpers gives."""
    c, n_head = Choices(**choices), case.init[1]
    if case.call == "transpose_qkv":
        heads: Tensor = formula(joint, heads=attention.split(case.args[0], n_head, c.split))
        return heads.flatten(0, 1)
    if case.call == "transpose_output":
        axes = (-1, n_head) if joint == "heads" else (n_head, -1)
        return attention.merge(formula(joint, heads=case.args[0].unflatten(0, axes)), c.merge)
    queries, keys, values, lengths = case.args
    hidden = partial(past_lengths, lengths, c=c)
    return Layer(case.weights, n_head)(c, queries, keys, values, hidden)[0]


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
    inputs = (draw.normal("batch", word, hiddens) for word in ("query", "key", "key"))
    return layer(draw, *inputs, lengths, **options)


def split(draw: Draw) -> Case:
    return layer(draw, draw.normal("batch", "key", draw["head"] * draw["head_dim"]), call="transpose_qkv")


def joined(draw: Draw) -> Case:
    heads = draw.normal(draw["batch"] * draw["head"], "key", "head_dim")
    return layer(draw, heads, call="transpose_output")


def dropped(draw: Draw) -> Case:
    """Identity projections: the output is the weights after dropout, twice."""
    case = CALLS.dropped(draw)
    return replace(case, weights={name: torch.eye(len(weight)) for name, weight in case.weights.items()})


CALLS = WithLengths(given)
SIZES = {"batch": 2, "query": 3, "key": 7, "head": 5, "head_dim": 2}

TRIALS = (
    *CALLS.trials(SIZES),
    Trial("with biases", partial(CALLS.per_sequence, bias=True), {**SIZES, "head": 3}),
    evaluated(partial(CALLS.per_sequence, dropout=0.7), SIZES),
    Trial("transpose_qkv", split, SIZES, optional=True),
    Trial("transpose_output", joined, SIZES, optional=True),
)

PROBES = (
    *CALLS.probes(SIZES),
    dropout_probe(dropped, {"batch": 2, "query": 11, "key": 7, "head": 3, "head_dim": 14}, n_head=3),
)
