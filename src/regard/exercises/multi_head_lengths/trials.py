"""Reference, calls and probes of `multi-head-lengths`."""

from functools import partial
from typing import Any

from torch import Tensor

from regard.checking.trials import Case, Draw, Probe, Trial, changed, neighbour_probe
from regard.exercises.shared import attention
from regard.exercises.shared.attention import Choices, Layer
from regard.exercises.shared.lengths import edges, large_scores, query_probe


def reference(case: Case, **choices: str) -> Tensor:
    """The output, or what one of the two helpers gives."""
    c, n_head = Choices(**choices), case.init[0]
    if case.call == "split_heads":
        return attention.split(case.args[0], n_head, c.split)
    if case.call == "combine_heads":
        return attention.merge(case.args[0], c.merge)
    return Layer(case.weights, n_head)(c, *case.args)[0]


def layer(draw: Draw, *args: Any, call: str = "") -> Case:
    """A case with these arguments, and all weights."""
    n_head, width, qk, v = (draw[word] for word in ("head", "embedding", "qk_length", "value_length"))
    rows = {"q": n_head * qk, "k": n_head * qk, "v": n_head * v}
    weights = {f"W_{letter}.weight": draw.weight(rows[letter], width) for letter in rows}
    weights["W_o.weight"] = draw.weight(width, n_head * v)
    return Case(args, call=call, init=(n_head, width, qk, v), weights=weights)


def cross(draw: Draw, scale: float = 1.0) -> Case:
    words = ("query", "key", "key")
    return layer(draw, *(draw.normal("batch", word, "embedding", scale=scale) for word in words))


def itself(draw: Draw) -> Case:
    x = draw.normal("batch", "query", "embedding")
    return layer(draw, x, x.clone(), x.clone())


def split(draw: Draw) -> Case:
    width = draw["head"] * draw["value_length"]
    return layer(draw, draw.normal("batch", "key", width), draw["value_length"], call="split_heads")


def combine(draw: Draw) -> Case:
    return layer(draw, draw.normal("batch", "head", "query", "value_length"), call="combine_heads")


def reorder_keys(case: Case, draw: Draw) -> None:
    for x in case.args[1:]:
        x.copy_(x.flip(1))


SIZES = {"batch": 2, "query": 3, "key": 5, "head": 3, "embedding": 11, "qk_length": 7, "value_length": 5}

ORDER = "keys and values were put in another order: nothing may move."

TRIALS = (
    Trial("cross-attention", cross, SIZES, variants=True),
    Trial("self-attention", itself, {**SIZES, "query": 5}, variants=True),
    Trial("values wider than queries", cross, {**SIZES, "head": 2, "qk_length": 3, "value_length": 7}),
    Trial("as wide as the embedding", cross, {**SIZES, "embedding": 6, "qk_length": 2, "value_length": 2}),
    *edges(cross, SIZES),
    large_scores(partial(cross, scale=15.0), SIZES),
    Trial("split_heads", split, SIZES, optional=True),
    Trial("combine_heads", combine, SIZES, optional=True),
)

PROBES = (
    neighbour_probe(cross, SIZES),
    query_probe(cross, SIZES),
    Probe("the order of the keys has no say", changed(cross, reorder_keys), SIZES, says=ORDER),
)
