"""Softmax attention for all that attend; its decisions are formulas, of which the defaults are right."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.checking.trials import ANYTHING, formula

FINITE = -1e6  # hides, and leaves quarters exact in float32 when it is added

Hidden = Callable[[Tensor], Tensor | None]  # scores -> which of them may not be seen


def computed(text: str, /, **quantities: Any) -> Tensor:
    """The tensor that a formula gives."""
    result: Tensor = formula(text, **quantities)
    return result


@dataclass(frozen=True)
class Choices:
    """Every decision of attention, from the projections to what is returned."""

    query_from: str = "queries"
    key_from: str = "keys"
    value_from: str = "values"
    query_by: str = "q(x)"
    key_by: str = "k(x)"
    value_by: str = "v(x)"
    bias: str = "used"
    split: str = "heads"
    scores: str = "q @ k.mT"
    scale: str = "dim ** 0.5"
    lengths: str = "rows"
    last_key: str = "key >= length"
    causal: str = "asked and key > query"
    mask: str = "hidden"
    fill: str = ""  # how it is hidden tells the convention of empty rows
    hidden_at: str = "softmax(filled)"
    empty_row: str = "zeros"
    softmax: str = "scores.softmax(-1)"
    after_softmax: str = "weights"
    weights: str = "weights"
    averaged: str = "v"
    merge: str = "joined"
    out: str = "o(joined)"
    plus: str = "out"


# How a row that sees nothing is filled tells how a score is hidden: zeros and NaN come from -inf, the same
# weight everywhere from a large finite number, and something else from one that is added.
FILLS = {
    "zeros": "scores.masked_fill(hidden, -torch.inf)",
    "nan": "scores.masked_fill(hidden, -torch.inf)",
    "uniform": f"scores.masked_fill(hidden, {FINITE})",
    "other": f"scores + {FINITE} * hidden",
    "all keys": f"scores + {FINITE} * hidden",
}


def weighed(scores: Tensor, hidden: Tensor | None, c: Choices) -> Tensor:
    """The weights of scores (batch, head, query, key), of which those that are `hidden` may not be seen."""

    def softmax(scores: Tensor) -> Tensor:
        return computed(c.softmax, scores=scores)

    later = future(scores, False, c)
    if later is not None:
        hidden = later if hidden is None else hidden | later
    if hidden is None:
        return softmax(scores)
    head = torch.arange(scores.shape[1])[:, None, None]
    hidden = computed(c.mask, hidden=hidden.expand(scores.shape), head=head)
    filled = computed(c.fill or FILLS[c.empty_row], scores=scores, hidden=hidden)
    lowest, least = (-math.inf, 0.0) if c.empty_row == "nan" else (FINITE, 1e-9)
    parts = {"scores": scores, "hidden": hidden, "filled": filled, "lowest": lowest, "least": least}
    weights = computed(c.hidden_at, softmax=softmax, **parts)
    right = not c.fill and c.hidden_at == Choices.hidden_at
    return weights.masked_fill(hidden, 0.0) if right and c.empty_row == "zeros" else weights


def past_lengths(lengths: Tensor | None, scores: Tensor, c: Choices) -> Tensor | None:
    """Which of the scores (batch, head, query, key) lie past `lengths`, (batch,) or (batch, query)."""
    if lengths is None:
        return None
    _, n_head, n_query, n_key = scores.shape
    sizes = {"n_head": n_head, "n_query": n_query, "n_key": n_key, "each_query": lengths.dim() == 2}
    rows = lengths if lengths.dim() == 2 else lengths[:, None].expand(-1, n_query)
    rows = computed(c.lengths, rows=rows, lengths=lengths, **sizes)
    length = (rows if rows.dim() == 3 else rows[:, None])[..., None]
    key, query = torch.arange(n_key), torch.arange(n_query)[:, None]
    return computed(c.last_key, key=key, query=query, length=length, **sizes)


def future(scores: Tensor, asked: bool, c: Choices) -> Tensor | None:
    """What a causal mask hides of scores (..., query, key); None where nothing is hidden."""
    n_query, n_key = scores.shape[-2:]
    hidden = formula(c.causal, asked=asked, key=torch.arange(n_key), query=torch.arange(n_query)[:, None])
    return hidden if isinstance(hidden, Tensor) else None


def nothing(scores: Tensor) -> None:
    """Hides nothing."""


def attended(
    c: Choices,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    hidden: Hidden = nothing,
    width: int = 0,
    scaled: str = "scores / scale",
    **more: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """Heads, weights and scores of (batch, head, position, dim), where some scores are hidden.

    `width` is that of the layer's input; formulas may use what `more` has.
    """
    n_head, n_query, dim = q.shape[1:]
    sizes = {"n_head": n_head, "n_query": n_query, "n_key": k.shape[-2], "dim": dim, "v_dim": v.shape[-1]}
    scale = formula(c.scale, width=width or dim, **sizes, **more)
    scores = computed(scaled, scores=computed(c.scores, q=q, k=k), scale=scale, **more)
    weights = computed(c.after_softmax, weights=weighed(scores, hidden(scores), c), dim=dim)
    heads = computed(c.weights, weights=weights, dim=dim, **more) @ computed(c.averaged, v=v)
    return heads, weights, scores


def split(x: Tensor, n_head: int, how: str = "heads", role: str = "") -> Tensor:
    """(batch, position, n_head * dim) -> (batch, head, position, dim)."""
    heads = x.unflatten(-1, (n_head, -1)).transpose(1, 2)
    return computed(how, x=x, heads=heads, n_head=n_head, role=role)


def merge(heads: Tensor, how: str = "joined") -> Tensor:
    """(batch, head, position, dim) -> (batch, position, n_head * dim)."""
    return computed(how, heads=heads, joined=heads.transpose(1, 2).flatten(2))


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer's weights, and the names of its projections."""

    weights: Mapping[str, Tensor]
    n_head: int
    names: tuple[str, str, str, str] = ("W_q", "W_k", "W_v", "W_o")

    def project(self, x: Tensor, name: str, c: Choices) -> Tensor:
        """A linear layer's result."""
        bias = None if c.bias == "not used" else self.weights.get(f"{name}.bias")
        return F.linear(x, self.weights[f"{name}.weight"], bias)

    def layers(self, c: Choices) -> dict[str, Callable[[Tensor], Tensor]]:
        """The projections by the letters q, k, v and o, as formulas call them."""
        named = zip("qkvo", self.names, strict=True)
        return {letter: partial(self.project, name=name, c=c) for letter, name in named}

    def projected(self, c: Choices, *inputs: Tensor, n_kv_head: int = 0) -> tuple[Tensor, ...]:
        """Queries, keys and values by head."""
        by_name = dict(zip(("queries", "keys", "values"), inputs, strict=True))
        layers, n_kv_head = self.layers(c), n_kv_head or self.n_head
        decisions = (
            (c.query_from, c.query_by, self.n_head, "queries"),
            (c.key_from, c.key_by, n_kv_head, "keys"),
            (c.value_from, c.value_by, n_kv_head, "values"),
        )
        return tuple(
            split(computed(by, x=by_name[source], **layers), n_head, c.split, role)
            for source, by, n_head, role in decisions
        )

    def __call__(
        self, c: Choices, queries: Tensor, keys: Tensor, values: Tensor, hidden: Hidden = nothing, **more: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Output, weights and scores of the whole layer."""
        q, k, v = self.projected(c, queries, keys, values)
        heads, weights, scores = attended(c, q, k, v, hidden, queries.shape[-1], **more)
        return self.leave(c, heads, queries=queries, keys=keys, values=values), weights, scores

    def leave(self, c: Choices, heads: Tensor, **inputs: Tensor) -> Tensor:
        """What the output layer makes of the heads, with what is added to it."""
        parts = {**self.layers(c), **inputs, "joined": merge(heads, c.merge)}
        out = computed(c.out, W_o=self.weights.get(f"{self.names[3]}.weight"), **parts)
        return computed(c.plus, out=out, **parts)


def opened(out: Tensor, hidden: Tensor | None, c: Choices) -> Tensor:
    """The output (batch, query, width); rows that see nothing may hold anything under such a convention."""
    if hidden is None or c.empty_row != "other":
        return out
    return torch.where(hidden.all(-1).any(1)[..., None], ANYTHING, out)
