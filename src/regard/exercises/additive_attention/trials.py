"""Reference, calls and probes of `additive-attention`."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.checking.trials import ANYTHING, Case, Draw, Trial, formula
from regard.exercises.shared.attention import Choices, Layer, computed, opened, past_lengths, weighed
from regard.exercises.shared.lengths import WithLengths, dropout_probe, evaluated


def reference(
    case: Case,
    *,
    returns: str = "output",
    activation: str = "x.tanh()",
    pairs: str = "act(q + k)",
    by: str = "features @ w_v",
    **choices: str,
) -> Tensor | None:
    """The output, or the weights where they are returned."""
    c = Choices(**choices)
    queries, keys, values, lengths, what = case.args
    layers = Layer(case.weights, 1, ("W_q", "W_k", "w_v", "")).layers(c)
    w_v = case.weights["w_v.weight"][0]
    parts = {
        "q": computed(c.query_by, x=queries, **layers)[:, :, None],
        "k": computed(c.key_by, x=keys, **layers)[:, None],
        "w_v": w_v,
        "act": lambda x: formula(activation, x=x),
        "root": len(w_v) ** 0.5,
    }
    scores = formula(by, features=formula(pairs, **parts), **parts)[:, None]
    hidden = past_lengths(lengths, scores, c)
    weights = weighed(scores, hidden, c)
    source = keys if c.value_from == "keys" else values
    output = computed(c.weights, weights=weights, dim=len(w_v))[:, 0] @ computed(c.averaged, v=source)
    if what == "weights":
        return None if returns == "output" else weights[:, 0]
    if case.train:  # the judge of dropout says more than a comparison
        return torch.full_like(output, ANYTHING)
    return opened(output, hidden, c)


def layer(draw: Draw, lengths: Tensor | None, what: str = "output", dropout: float = 0.0) -> Case:
    weights = {
        "W_q.weight": draw.weight("hidden", "query_dim"),
        "W_k.weight": draw.weight("hidden", "key_dim"),
        "w_v.weight": draw.normal(1, "hidden", scale=1.5),
    }
    queries, keys = draw.normal("batch", "query", "query_dim"), draw.normal("batch", "key", "key_dim")
    args: tuple[Any, ...] = (queries, keys, draw.normal("batch", "key", "value_dim"), lengths, what)
    return Case(args, init=(draw["hidden"], dropout), weights=weights)


CALLS = WithLengths(layer)
SIZES = {"batch": 2, "query": 3, "key": 7, "hidden": 5, "query_dim": 11, "key_dim": 13, "value_dim": 17}
ALIKE = {**SIZES, "query": 5, "key": 5, "query_dim": 5, "key_dim": 5}

TRIALS = (
    *CALLS.trials(SIZES),
    Trial("queries and keys of one size", CALLS.per_sequence, ALIKE),
    Trial("a length of 0", CALLS.with_empty, SIZES, grad=False),
    Trial("weights, where they are returned", partial(CALLS.per_sequence, what="weights"), SIZES, grad=False),
    evaluated(partial(CALLS.per_sequence, dropout=0.7), SIZES),
)

PROBES = (*CALLS.probes(SIZES), dropout_probe(CALLS.dropped, {**SIZES, "batch": 3, "query": 11}))
