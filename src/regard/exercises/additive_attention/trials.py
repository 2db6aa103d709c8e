"""Reference, calls and probes of `additive-attention`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear

from regard.checking.trials import ANYTHING, Case, Draw, Trial, made
from regard.exercises.shared import attention
from regard.exercises.shared.attention import opened, past_lengths, weighed
from regard.exercises.shared.lengths import (
    DROPOUT,
    WithLengths,
    dropout_probes,
    evaluated,
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
            "w_v over num_hiddens": lambda: features @ w_v / root**2,
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
    queries, keys, values, lengths, what = case.args
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


def given(
    draw: Draw, lengths: Tensor | None, what: str = "output", dropout: float = 0.0, train: bool = False
) -> Case:
    weights = {
        "W_q.weight": draw.weight("hidden", "query_dim"),
        "W_k.weight": draw.weight("hidden", "key_dim"),
        "w_v.weight": draw.normal(1, "hidden", scale=1.5),
    }
    queries, keys = draw.normal("batch", "query", "query_dim"), draw.normal("batch", "key", "key_dim")
    values = identity_values(draw) if train else draw.normal("batch", "key", "value_dim")
    args = (queries, keys, values, lengths, what)
    return Case(args, init=(draw["hidden"], dropout), weights=weights, train=train)


CALLS = WithLengths(given)
SIZES = {"batch": 2, "query": 3, "key": 7, "hidden": 5, "query_dim": 11, "key_dim": 13, "value_dim": 17}
ALIKE = {**SIZES, "query": 5, "key": 5, "query_dim": 5, "key_dim": 5}

TRIALS = (
    Trial("no lengths", CALLS.without, SIZES, variants=True),
    Trial("one length for each sequence", CALLS.per_sequence, SIZES, variants=True),
    Trial("one length for each query", CALLS.per_query, SIZES, variants=True),
    Trial("every key valid", CALLS.all_valid, SIZES),
    Trial("batch of one", CALLS.per_sequence, {**SIZES, "batch": 1}),
    Trial("one query", CALLS.per_query, {**SIZES, "query": 1}),
    Trial("as many queries as keys, all of one size", CALLS.per_sequence, ALIKE),
    Trial("as many sequences as queries", CALLS.per_sequence, {**ALIKE, "batch": 5}),
    Trial("a length of 0", CALLS.with_empty, SIZES, grad=False),
    Trial(
        "weights, where they are returned",
        lambda draw: given(draw, lengths_of(draw), "weights"),
        SIZES,
        grad=False,
    ),
    evaluated(lambda draw: given(draw, lengths_of(draw), dropout=0.7), SIZES),
)

PROBES = (
    *CALLS.probes(SIZES),
    *dropout_probes(
        lambda draw: given(draw, None, dropout=DROPOUT, train=True), {**SIZES, "batch": 3, "query": 11}
    ),
)
