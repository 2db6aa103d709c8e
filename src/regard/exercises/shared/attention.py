"""Softmax attention with its decisions as choices whose defaults are right, for all that attend."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.checking.trials import ANYTHING, made

FINITE = -1e6  # hides, and leaves quarters exact in float32 when it is added


@dataclass(frozen=True)
class Choices:
    """Every decision of attention, from the projections to what is returned."""

    query_from: str = "queries"
    key_from: str = "keys"
    value_from: str = "values"
    query_by: str = "q"
    key_by: str = "k"
    value_by: str = "v"
    bias: str = "used"
    split: str = "by head"
    scores: str = "queries with keys"
    scale: str = "root of a head's width"
    lengths: str = "of its own sequence"
    last_key: str = "the length"
    causal: str = "hides the future"
    mask: str = "hides"
    fill: str = "-inf"
    hidden_at: str = "before softmax"
    empty_row: str = "zeros"
    softmax: str = "over keys"
    weights: str = "of queries"
    merge: str = "by head"
    out: str = "projected"
    plus: str = "nothing"


FILLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "0": lambda scores, hidden: scores.masked_fill(hidden, 0.0),
    "0, and the weights too": lambda scores, hidden: scores.masked_fill(hidden, 0.0),
    "-1": lambda scores, hidden: scores.masked_fill(hidden, -1.0),
    "-10": lambda scores, hidden: scores.masked_fill(hidden, -10.0),
    "-50": lambda scores, hidden: scores.masked_fill(hidden, -50.0),
    "-100": lambda scores, hidden: scores.masked_fill(hidden, -100.0),
    "1e9": lambda scores, hidden: scores.masked_fill(hidden, 1e9),
    "inf": lambda scores, hidden: scores.masked_fill(hidden, math.inf),
    "the mask added": lambda scores, hidden: scores + (~hidden).to(scores.dtype),
    "10 subtracted": lambda scores, hidden: scores - 10.0 * hidden.to(scores.dtype),
    "the mask subtracted": lambda scores, hidden: scores - hidden.to(scores.dtype),
}

SOFTMAXES: dict[str, Callable[[Tensor], Tensor]] = {
    "over keys": lambda scores: scores.softmax(-1),
    "over queries": lambda scores: scores.softmax(-2),
    "over heads": lambda scores: scores.softmax(1),
    "over the batch": lambda scores: scores.softmax(0),
    "over the whole table": lambda scores: scores.flatten(-2).softmax(-1).reshape(scores.shape),
    "twice": lambda scores: scores.softmax(-1).softmax(-1),
    "of the negated scores": lambda scores: (-scores).softmax(-1),
    "none": lambda scores: scores,
    "the logarithm": lambda scores: scores.log_softmax(-1),
    "a sigmoid": lambda scores: scores.sigmoid(),
    "relu": lambda scores: scores.relu(),
    "a share of the sum": lambda scores: scores / scores.sum(-1, keepdim=True),
    "exponentials without their sum": lambda scores: scores.exp(),
    "exponentials below 1 without their sum": lambda scores: (scores - scores.amax(-1, keepdim=True)).exp(),
    "the largest alone": lambda scores: F.one_hot(scores.argmax(-1), scores.shape[-1]).to(scores.dtype),
}


def weighed(scores: Tensor, hidden: Tensor | None, c: Choices) -> Tensor:
    """The weights of scores (batch, head, query, key), of which those that are `hidden` may not be seen.

    How a row that sees nothing is filled tells how a score is hidden: zeros and NaN come from -inf, the same
    weight everywhere from a large finite number, and something else from one that is added.
    """
    if c.causal == "always":
        later = TRIANGLES["hides the future"](torch.ones(scores.shape[-2:], dtype=torch.bool))
        hidden = later if hidden is None else hidden | later
    if c.mask == "ignored" or hidden is None:
        return SOFTMAXES[c.softmax](scores)
    hidden = hidden.expand(scores.shape)
    if c.mask == "upside down":
        hidden = ~hidden
    if c.mask == "in the first head":
        hidden = hidden & (torch.arange(scores.shape[1]) == 0)[:, None, None]
    if c.hidden_at in ("after softmax", "after softmax, over what is left"):
        weights = SOFTMAXES[c.softmax](scores).masked_fill(hidden, 0.0)
        left = weights.sum(-1, keepdim=True) + (0.0 if c.empty_row == "nan" else 1e-9)
        return weights if c.hidden_at == "after softmax" else weights / left
    if c.hidden_at == "after softmax, as a score":
        return SOFTMAXES[c.softmax](scores).masked_fill(hidden, -math.inf if c.empty_row == "nan" else FINITE)
    if c.fill != "-inf":
        weights = SOFTMAXES[c.softmax](FILLS[c.fill](scores, hidden))
        return weights.masked_fill(hidden, 0.0) if c.fill == "0, and the weights too" else weights
    if c.empty_row in ("other", "all keys"):
        return SOFTMAXES[c.softmax](scores + FINITE * hidden)
    if c.empty_row == "uniform":
        return SOFTMAXES[c.softmax](scores.masked_fill(hidden, FINITE))
    weights = SOFTMAXES[c.softmax](scores.masked_fill(hidden, -math.inf))
    return weights if c.empty_row == "nan" else weights.masked_fill(hidden, 0.0)


def past_lengths(lengths: Tensor | None, scores: Tensor, c: Choices) -> Tensor | None:
    """Which of the scores (batch, head, query, key) lie past `lengths`, (batch,) or (batch, query)."""
    if lengths is None:
        return None
    n_batch, n_head, n_query, n_key = scores.shape
    each_query = lengths.dim() == 2
    if (c.lengths == "of sequences only" and each_query) or (
        c.lengths == "of queries only" and not each_query
    ):
        return None
    rows = lengths if each_query else lengths[:, None].expand(n_batch, n_query)
    if c.lengths == "of the first query":
        rows = rows[:, :1]
    elif c.lengths == "of the first sequence":
        rows = rows[:1].expand(n_batch, -1)
    elif c.lengths == "of the longest":
        rows = rows.max().expand(n_batch, n_query)
    elif c.lengths == "of the shortest":
        rows = rows.min().expand(n_batch, n_query)
    elif c.lengths == "of the longest query":
        rows = rows.amax(1, keepdim=True)
    elif c.lengths == "of the shortest query":
        rows = rows.amin(1, keepdim=True)
    elif c.lengths == "of queries in the wrong order" and not each_query:
        rows = lengths.repeat(n_query).reshape(n_batch, n_query)
    rows = rows[:, None]
    if c.lengths == "of heads in the wrong order":
        rows = rows[:, 0].repeat(n_head, 1).reshape(n_batch, n_head, -1)
    elif c.split == "heads outside the sequences":
        rows = rows[:, 0].repeat_interleave(n_head, 0).reshape(n_head, n_batch, -1).transpose(0, 1)
    last = rows[..., None] + {"one too many": 1, "one too few": -1}.get(c.last_key, 0)
    if c.last_key == "at least the first":
        last = last.clamp(min=1)
    if c.lengths == "of queries as positions" and not each_query:
        return (torch.arange(n_query)[:, None] >= last).expand(-1, -1, -1, n_key)
    if c.last_key == "the end, counted from there":
        return torch.arange(n_key) < n_key - last
    hidden = torch.arange(n_key) >= last
    if c.lengths == "of queries and keys" and not each_query:
        return hidden | (torch.arange(n_query)[:, None] >= last)
    return hidden


TRIANGLES: dict[str, Callable[[Tensor], Tensor]] = {
    "hides the future": lambda ones: ones.triu(1),
    "hides the past": lambda ones: ones.tril(-1),
    "hides the position itself": lambda ones: ones.triu(0),
    "shows one of the future": lambda ones: ones.triu(2),
}


def future(scores: Tensor, asked: bool, c: Choices) -> Tensor | None:
    """What a causal mask hides of scores (..., query, key); None where nothing is hidden."""
    if c.causal == "ignored" or not (asked or c.causal == "always"):
        return None
    triangle = TRIANGLES.get(c.causal, TRIANGLES["hides the future"])
    return triangle(torch.ones(scores.shape[-2:], dtype=torch.bool))


SCORES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "queries with keys": lambda q, k: q @ k.transpose(-2, -1),
    "keys with queries": lambda q, k: k @ q.transpose(-2, -1),
    "keys cut by view": lambda q, k: q @ k.reshape(*k.shape[:-2], k.shape[-1], k.shape[-2]),
    "cosines": lambda q, k: F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1),
    "distances": lambda q, k: -torch.cdist(q, k),
}


def divisor(c: Choices, q: Tensor, k: Tensor, v: Tensor, width: int) -> float:
    """What the scores are divided by; `width` is that of the layer's input."""
    n_head, dim = int(q.shape[1]), int(q.shape[-1])
    others: dict[str, float] = {
        "none": 1.0,
        "a head's width": dim,
        "times the root": dim**-0.5,
        "twice the root": 2 * dim**0.5,
        "whole part of the root": math.floor(dim**0.5),
        "root of all heads": (n_head * dim) ** 0.5,
        "root of the input's width": width**0.5,
        "root of the input's share of a head": (width / n_head) ** 0.5,
        "root of the values' width": v.shape[-1] ** 0.5,
        "root of the number of keys": k.shape[-2] ** 0.5,
        "root of the number of queries": q.shape[-2] ** 0.5,
        "root of the number of heads": n_head**0.5,
        "the number of keys": k.shape[-2],
        "root of 4": 2.0,
        "root of 64": 8.0,
        "the whole width": n_head * dim,
        "the number of heads": n_head,
        "after the softmax": 1.0,
    }
    return others.get(c.scale, math.sqrt(dim))


def attended(
    c: Choices,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    hidden: Callable[[Tensor], Tensor | None],
    width: int = 0,
    moved: Callable[[Tensor, float], Tensor] = lambda scores, scale: scores / scale,
) -> tuple[Tensor, Tensor, Tensor]:
    """Heads, weights and scores of (batch, head, position, dim), where some scores are hidden."""
    scores = moved(SCORES[c.scores](q, k), divisor(c, q, k, v, width or q.shape[-1]))
    if c.scores == "keys with queries" and scores.shape[-1] != k.shape[-2]:
        raise ValueError("as many queries as keys")
    weights = weighed(scores, hidden(scores), c)
    if c.scale == "after the softmax":
        weights = weights / q.shape[-1] ** 0.5
    by = made(
        {
            "of queries": lambda: weights,
            "transposed": lambda: weights.transpose(-2, -1),
            "through a softmax again": lambda: weights.softmax(-1),
            "averaged over the heads": lambda: weights.mean(1, keepdim=True),
            "of the first head": lambda: weights[:, :1],
        },
        c.weights,
    )
    return by @ v, weights, scores


def split(x: Tensor, n_head: int, how: str, role: str = "") -> Tensor:
    """(batch, position, n_head * dim) -> (batch, head, position, dim); "keys by view" is for keys alone."""
    how, (n_batch, n_position, _) = how.removeprefix(f"{role} "), x.shape
    if how == "by view":
        return x.reshape(n_batch, n_head, n_position, -1)
    if how == "width for number":
        return x.reshape(n_batch, n_position, -1, n_head).transpose(1, 2)
    if how == "every n-th number":
        return x.reshape(n_batch, n_position, -1, n_head).permute(0, 3, 1, 2)
    return x.reshape(n_batch, n_position, n_head, -1).transpose(1, 2)


def merge(x: Tensor, how: str) -> Tensor:
    """(batch, head, position, dim) -> (batch, position, n_head * dim)."""
    n_batch, _, n_position, _ = x.shape
    if how == "by view":
        return x.reshape(n_batch, n_position, -1)
    if how == "number by number":
        return x.permute(0, 2, 3, 1).reshape(n_batch, n_position, -1)
    if how == "last head first":
        x = x.flip(1)
    if how in ("mean", "sum", "first head"):
        return {"mean": x.mean(1), "sum": x.sum(1), "first head": x[:, 0]}[how]
    return x.transpose(1, 2).reshape(n_batch, n_position, -1)


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer's weights, and the names of its projections."""

    weights: Mapping[str, Tensor]
    n_head: int
    names: tuple[str, str, str, str] = ("W_q", "W_k", "W_v", "W_o")

    def project(self, x: Tensor, name: str, c: Choices) -> Tensor:
        """A linear layer's result."""
        without = c.bias == "not used" or name in c.bias.removeprefix("without ").split()
        return F.linear(
            x, self.weights[f"{name}.weight"], None if without else self.weights.get(f"{name}.bias")
        )

    def heads(
        self,
        c: Choices,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        hidden: Callable[[Tensor], Tensor | None],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The heads' results, weights and scores."""
        given = {"queries": queries, "keys": keys, "values": values}
        layers = dict(zip("qkvo", self.names, strict=True))
        q, k, v = (
            split(x if by == "nothing" else self.project(x, layers[by], c), self.n_head, c.split, role)
            for x, by, role in (
                (given[c.query_from], c.query_by, "queries"),
                (given[c.key_from], c.key_by, "keys"),
                (given[c.value_from], c.value_by, "values"),
            )
        )
        return attended(c, q, k, v, hidden, queries.shape[-1])

    def __call__(
        self,
        c: Choices,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        hidden: Callable[[Tensor], Tensor | None],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Output, weights and scores of the whole layer."""
        heads, weights, scores = self.heads(c, queries, keys, values, hidden)
        return self.leave(c, heads, queries=queries, keys=keys, values=values), weights, scores

    def leave(self, c: Choices, heads: Tensor, **given: Tensor) -> Tensor:
        """What the output layer makes of the heads, with what is added to it."""
        joined = merge(heads, c.merge)
        if c.plus == "queries, before the output layer":
            joined, c = joined + given["queries"], replace(c, plus="nothing")
        if c.out == "left out":
            out = joined
        elif c.out == "by the values' layer":
            out = self.project(joined, self.names[2], c)
        elif c.out == "transposed":
            out = joined @ self.weights[f"{self.names[3]}.weight"]
        else:
            out = self.project(joined, self.names[3], c)
        return added(out, c, heads=joined, **given)


def added(out: Tensor, c: Choices, **parts: Tensor) -> Tensor:
    """The output, with what is added to it."""
    if c.plus == "nothing":
        return out
    part = parts[c.plus]
    if part.shape != out.shape:
        raise ValueError(f"{c.plus} of another shape")
    return out + part


def opened(out: Tensor, hidden: Tensor | None, c: Choices) -> Tensor:
    """The output (batch, query, width); rows that see nothing may hold anything under such a convention."""
    if hidden is None or c.empty_row != "other":
        return out
    return torch.where(hidden.all(-1).any(1)[..., None], ANYTHING, out)
