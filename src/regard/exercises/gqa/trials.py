"""Reference, calls and probes of `gqa`."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from regard.checking.trials import Case, Draw, Trial
from regard.exercises.shared import attention
from regard.exercises.shared.attention import Layer, attended, future, split
from regard.exercises.shared.given import causal_probes
from regard.exercises.shared.lengths import large_scores


@dataclass(frozen=True)
class Choices(attention.Choices):
    """Attention, and which key head a query head looks at."""

    groups: str = "neighbouring heads"


def reference(case: Case, **choices: str) -> Tensor:
    """Causal self-attention in which neighbouring query heads share keys and values."""
    c, (x,), (_, n_head, n_kv_head) = Choices(**choices), case.args, case.init
    layer = Layer(case.weights, n_head)
    q, k, v = (
        split(x if by == "nothing" else layer.project(x, f"W_{by}", c), heads, c.split, role)
        for by, heads, role in (
            (c.query_by, n_head, "queries"),
            (c.key_by, n_kv_head, "keys"),
            (c.value_by, n_kv_head, "values"),
        )
    )
    group = n_head // n_kv_head
    if c.scale == "root of a key head's share":
        q = q / group**0.5
    if c.scale == "root of all key heads":
        q = q / n_kv_head**0.5
    if c.groups == "mean of the queries":
        q = q.unflatten(1, (n_kv_head, group)).mean(2).repeat_interleave(group, 1)
    k, v = (_shared(heads, group, c.groups, name) for heads, name in ((k, "keys"), (v, "values")))
    heads, _, _ = attended(c, q, k, v, lambda scores: future(scores, True, c), x.shape[-1])
    if c.groups == "joined group by group":
        heads = heads.unflatten(1, (n_kv_head, group)).transpose(1, 2).flatten(1, 2)
    return layer.leave(c, heads, queries=x, keys=x, values=x)


def _shared(heads: Tensor, group: int, how: str, name: str) -> Tensor:
    """Heads of keys or values, one for each query head."""
    if how in ("every n-th head", f"{name} in another order"):
        return heads.repeat(1, group, 1, 1)
    if how in ("the first key head", f"the first of the {name}", "their mean"):
        one = heads.mean(1, keepdim=True) if how == "their mean" else heads[:, :1]
        return one.expand(-1, group * heads.shape[1], -1, -1)
    return (heads.flip(1) if how == "turned round" else heads).repeat_interleave(group, 1)


def layer(draw: Draw, scale: float = 1.0) -> Case:
    n_head = draw["kv_head"] * draw["group"]
    width, narrow = n_head * draw["head_dim"], draw["kv_head"] * draw["head_dim"]
    rows = {"q": width, "k": narrow, "v": narrow, "o": width}
    weights = {f"W_{letter}.weight": 1.5 * draw.weight(rows[letter], width) for letter in rows}
    x = draw.normal("batch", "position", width, scale=scale)
    return Case((x,), init=(width, n_head, draw["kv_head"]), weights=weights)


SIZES = {"batch": 2, "position": 5, "kv_head": 2, "group": 3, "head_dim": 5}

TRIALS = (
    Trial("two groups of three", layer, SIZES, variants=True),
    Trial("three groups of two", layer, {**SIZES, "kv_head": 3, "group": 2}, variants=True),
    Trial("one key head", layer, {**SIZES, "kv_head": 1}),
    Trial("a key head for each query head", layer, {**SIZES, "kv_head": 3, "group": 1}),
    Trial("as many positions as heads", layer, {**SIZES, "position": 6}),
    Trial("batch of one", layer, {**SIZES, "batch": 1}),
    Trial("one position", layer, {**SIZES, "position": 1}),
    large_scores(lambda draw: layer(draw, 20.0), SIZES),
)

PROBES = causal_probes(layer, SIZES)
