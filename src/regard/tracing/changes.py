"""What may take the place of an attention layer's output: edges cut, heads gated, parts of another run.

A change is given one call of attention and answers with its heads' outputs, (batch, head, query, v_dim). Only
the heads and rows that it names are computed again, some rows at a time; all others stay, to the bit.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal

import torch
from torch import Tensor

from regard.attention.shapes import whole_index
from regard.errors import ArgumentError, ShapeError, UnsupportedError
from regard.tracing.calls import Called, of_heads
from regard.tracing.layers import LayerTrace
from regard.tracing.traces import Trace

At = int | slice | Sequence[int] | None  # one place, several, or all
What = Literal["outputs", "weights", "scores"]

_BLOCK = 1 << 22  # weights computed at once


@dataclass(slots=True, eq=False)
class Change(ABC):
    """A change of one layer: of some sequences, heads and queries of it, or of all."""

    layer: int | str
    head: At = None
    query: At = None
    batch: At = None
    times: int = field(default=0, init=False)  # how often it took place
    _n_key: int = field(default=0, init=False)  # of the call before

    def __call__(self, called: Called, out: Tensor) -> Tensor:
        """The outputs of all heads after the change."""
        n_batch, n_head, n_query, n_key = called.shape
        first = self._first(called)
        rows = _positions(self.query, n_query, first)
        heads = _places("head", self.head, n_head, called.name)
        batch = _places("batch", self.batch, n_batch, called.name)
        if not rows or not self.reaches(n_key):
            return out
        self.times += 1
        changed = out.clone()
        for block in _blocks(rows, n_batch * len(heads) * n_key):
            new = self.new(called, out[:, heads, block], heads, block, first)
            if called.alike is not None:  # such a row is padding: it stays as it is
                alike = called.alike.expand(n_batch, n_head, n_query)[:, heads, block, None]
                new = torch.where(alike, out[:, heads, block], new)
            at = torch.tensor(batch)[:, None, None], torch.tensor(heads)[None, :, None]
            changed[(*at, torch.arange(block.start, block.stop))] = new[batch].to(changed.dtype)
        return changed

    def reaches(self, n_key: int) -> bool:
        """Whether a call with so many keys has one that is meant."""
        return True

    @abstractmethod
    def new(self, called: Called, out: Tensor, heads: list[int], rows: slice, first: int) -> Tensor:
        """What takes the place of `out` (batch, head, rows, v_dim) in these heads and rows."""

    def _first(self, called: Called) -> int:
        """The position of the first query, after what a cache held; refused where that is not known."""
        n_query, n_key = called.shape[2:]
        before, self._n_key = self._n_key, n_key
        if called.kind == "cross" or n_query == n_key:
            return called.before
        if before + n_query != n_key and not (self.query is None or self.query == -1):
            raise UnsupportedError(
                f"{called.name} has {n_query} queries and {n_key} keys, and had {before} before: where its "
                "queries stand is not known (a cache of fixed size, or one that forgets). Leave out query, "
                "or say -1, the last."
            )
        return n_key - n_query


@dataclass(slots=True, eq=False)
class KnockOut(Change):
    """Some queries of a head do not see some keys: the rest of a row shares what they had."""

    key: At = None
    renormalise: bool = True

    def reaches(self, n_key: int) -> bool:
        return bool(_positions(self.key, n_key, 0))

    def new(self, called: Called, out: Tensor, heads: list[int], rows: slice, first: int) -> Tensor:
        hidden = torch.zeros(called.shape[3], dtype=torch.bool, device=out.device)
        hidden[_positions(self.key, called.shape[3], 0)] = True
        if called.weights is not None:
            before = called.weights[:, heads, rows]
            weights = before.masked_fill(hidden, 0.0)
            if self.renormalise:  # a row keeps its sum: 1, or less where a sink takes part
                left = weights.sum(-1, keepdim=True)
                weights = weights * torch.where(left == 0, 0.0, before.sum(-1, keepdim=True) / left)
            return called.attended(weights, heads)
        scores = called.scores_of(heads, rows)
        sums = None if self.renormalise else called.sums(scores, heads)
        return called.attended(called.softmax(scores.masked_fill(hidden, -math.inf), heads, sums), heads)


@dataclass(slots=True, eq=False)
class Gate(Change):
    """A head's output times a factor; what the factor leaves may be filled with another output."""

    by: float | Tensor = 0.0  # a number, or one for each head
    toward: Tensor | None = None  # (head, v_dim) or (v_dim,): of the heads that are gated

    def new(self, called: Called, out: Tensor, heads: list[int], rows: slice, first: int) -> Tensor:
        by = self.by
        if isinstance(by, Tensor) and by.dim():
            if by.shape != (len(heads),):
                raise ShapeError(
                    f"by must be one number or (head,) = ({len(heads)},) in {called.name}. "
                    f"Got {tuple(by.shape)}."
                )
            by = by[:, None, None]
        if self.toward is None:
            return out * by
        wanted = (len(heads), out.shape[3])
        if tuple(self.toward.shape) not in (wanted, wanted[1:]):
            raise ShapeError(
                f"toward must be (head, v_dim) = {wanted} in {called.name}. Got {tuple(self.toward.shape)}."
            )
        rest = self.toward.to(out)
        return out * by + (rest[:, None] if rest.dim() == 2 else rest) * (1 - by)


@dataclass(slots=True, eq=False)
class Patch(Change):
    """Outputs, weights or scores of a head as they were in another run."""

    source: Trace | Tensor | None = None
    what: What = "outputs"
    key: At = None  # of scores: only these are exchanged

    def new(self, called: Called, out: Tensor, heads: list[int], rows: slice, first: int) -> Tensor:
        if isinstance(self.source, Tensor):
            return self._as_given(self.source, called, out, heads, rows)
        assert isinstance(self.source, Trace)  # who made this saw to it
        layer = self.source.layer(called.name)
        at = slice(rows.start + first, rows.stop + first)
        if layer.n_head <= max(heads) or layer.n_query < at.stop or layer.n_batch not in (1, called.shape[0]):
            raise ShapeError(
                f"{called.name} has (batch, head, query) = {called.shape[:3]} here and {layer.shape[:3]} in "
                "the source: batches must be equal or 1, and every place that is patched must be there."
            )
        if self.what != "outputs" and layer.n_key != called.shape[3]:
            raise ShapeError(
                f"{called.name} has {called.shape[3]} keys here and {layer.n_key} in the source: weights and "
                "scores can be exchanged between texts of one length only."
            )
        if self.what == "scores":
            if not isinstance(layer, LayerTrace):
                raise UnsupportedError(f"{called.name} has no scores that are known in the source.")
            keys = _positions(self.key, called.shape[3], 0)
            scores = called.scores_of(heads, rows).clone()
            source = Called(layer.name, layer.kind, None, None, q=layer.q, k=layer.k, rule=layer.rule)
            scores[..., keys] = source.scores_of(heads, at).to(scores.dtype).expand_as(scores)[..., keys]
            return called.attended(called.softmax(scores, heads), heads)
        weights = torch.cat([layer.block(at, slice(0, layer.n_key), None, head) for head in heads], 1)
        if self.what == "weights":
            return called.attended(weights, heads).expand_as(out)
        if layer.v is None:
            raise ArgumentError("the source has no values: trace it with keep_v=True, or patch weights.")
        return (weights @ of_heads(layer.v, heads, layer.n_head).to(weights.dtype)).expand_as(out)

    def _as_given(self, source: Tensor, called: Called, out: Tensor, heads: list[int], rows: slice) -> Tensor:
        """Outputs that were given as they are: of all heads and queries, or of those that are patched."""
        n_batch, n_head, n_query = called.shape[:3]
        places = _places("query", self.query, n_query, called.name)
        part = source.to(out)
        if part.dim() == 4 and part.shape[1] == n_head:
            part = part[:, heads]
        if part.dim() == 4 and part.shape[2] == n_query:
            part = part[:, :, rows]
        elif part.dim() == 4 and part.shape[2] == len(places):
            before = sum(row < rows.start for row in places)
            part = part[:, :, before : before + rows.stop - rows.start]
        if self.what != "outputs" or part.shape[1:] != out.shape[1:] or part.shape[0] not in (1, n_batch):
            raise ShapeError(
                f"a tensor to patch {called.name} with must be outputs, (batch, head, query, v_dim) = "
                f"{(n_batch, len(heads), len(places), out.shape[3])}. Got {tuple(source.shape)}."
            )
        return part.expand_as(out)


def _places(name: str, at: At, size: int, where: str) -> list[int]:
    """The indices that `at` means; raises where one is not there."""
    if at is None:
        return list(range(size))
    if isinstance(at, slice):
        return list(range(*at.indices(size)))
    try:
        return [whole_index(name, index, size) for index in ([at] if isinstance(at, int) else at)]
    except (ArgumentError, IndexError, ShapeError) as error:
        raise ArgumentError(f"{where}: {error}") from None


def _positions(at: At, n: int, first: int) -> list[int]:
    """Which of the `n` positions from `first` on are meant: in a text that grows, others come later."""
    if at is None:
        return list(range(n))
    end = first + n
    if isinstance(at, slice):
        places = list(range(*at.indices(end)))
    else:
        places = [place + end if place < 0 else place for place in ([at] if isinstance(at, int) else at)]
    return sorted({place - first for place in places if first <= place < end})


def _blocks(rows: list[int], cost: int) -> Iterator[slice]:
    """Rows as slices of neighbours, each of about `_BLOCK` weights at `cost` weights a row."""
    most = max(1, _BLOCK // max(1, cost))
    for _, numbered_rows in groupby(enumerate(rows), lambda pair: pair[1] - pair[0]):
        neighbours = [row for _, row in numbered_rows]
        end = neighbours[-1] + 1
        yield from (slice(first, min(first + most, end)) for first in range(neighbours[0], end, most))
