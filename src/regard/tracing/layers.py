"""One attention layer of a trace: enough of it to recover any weight.

LayerTrace        softmax attention: q, k and the row log-sum-exp; a weight is exp(score - lse)
LinearLayerTrace  kernelised attention: q, k and the row normaliser
DenseLayerTrace   weights that somebody already has

All three answer the same questions: a tile, a row, a column, an overview pooled over blocks.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.attention.linear import FeatureMap, attend_linear, linear_weights
from regard.attention.scores import ScoreRule
from regard.attention.shapes import check_attention
from regard.attention.visibility import Visibility
from regard.errors import ArgumentError, ShapeError
from regard.tracing.rule_parts import one_of, rule_part, rule_tensors, visibility_tensors, visible_part

Kind = Literal["self", "cross"]
Pooling = Literal["max", "mean"]

LARGE = 1 << 26  # weights: a whole matrix above this is worth a warning (256 MiB in float32)
_BLOCK = 1 << 20  # weights worked on at once


class AnyLayer(ABC):
    """What every traced layer can do, whatever its mechanism: a subclass gives `block`, `visible_block`."""

    __slots__ = ()
    name: str
    kind: Kind

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, head, query, key)."""

    @property
    @abstractmethod
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors held, for counting bytes."""

    @abstractmethod
    def block(
        self, rows: slice, cols: slice, batch: int | None = None, head: int | None = None
    ) -> Float[Tensor, "_batch _head rows cols"]:
        """Weights of `rows` x `cols`, of one sequence or all (None), of one head or all (None)."""

    @abstractmethod
    def visible_block(self, rows: slice, cols: slice, batch: int, head: int) -> Bool[Tensor, "rows cols"]:
        """Which of `rows` x `cols` may be looked at."""

    def key_range(self, rows: slice) -> slice:
        """The keys that some query of `rows` may see: weights outside are 0."""
        return slice(0, self.n_key)

    @property
    def n_batch(self) -> int:
        return self.shape[0]

    @property
    def n_head(self) -> int:
        return self.shape[1]

    @property
    def n_query(self) -> int:
        return self.shape[2]

    @property
    def n_key(self) -> int:
        return self.shape[3]

    def tile(self, batch: int, head: int, rows: slice, cols: slice) -> Float[Tensor, "rows cols"]:
        """Weights of `rows` x `cols` of one head: costs its own area only."""
        batch, head = self._at(batch, head)
        rows, cols = whole_slice("rows", rows, self.n_query), whole_slice("cols", cols, self.n_key)
        return self.block(rows, cols, batch, head)[0, 0]

    def row(self, batch: int, head: int, query: int) -> Float[Tensor, "key"]:
        """Where one query looks."""
        query = whole_index("query", query, self.n_query)
        return self.tile(batch, head, slice(query, query + 1), slice(None))[0]

    def column(self, batch: int, head: int, key: int) -> Float[Tensor, "query"]:
        """How much every query looks at one key."""
        key = whole_index("key", key, self.n_key)
        return self.tile(batch, head, slice(None), slice(key, key + 1))[:, 0]

    def weights(self, batch: int, head: int) -> Float[Tensor, "query key"]:
        """One head's whole matrix; warns where it is large."""
        n_weight = self.n_query * self.n_key
        if n_weight > LARGE:
            warnings.warn(
                f"one head's matrix of {self.n_query} x {self.n_key} weights takes "
                f"{n_weight * 4 / 2**20:.0f} MiB in float32: use tile, row, column or pooled.",
                stacklevel=2,
            )
        return self.tile(batch, head, slice(None), slice(None))

    def visible(self, rows: slice, cols: slice, batch: int = 0, head: int = 0) -> Bool[Tensor, "rows cols"]:
        """Which cells of a tile may be looked at: a hidden one is drawn differently from a weight of 0."""
        batch, head = self._at(batch, head)
        rows, cols = whole_slice("rows", rows, self.n_query), whole_slice("cols", cols, self.n_key)
        return self.visible_block(rows, cols, batch, head)

    def strips(
        self, batch: int, head: int | None = None, n_weight: int = _BLOCK
    ) -> Iterator[tuple[slice, Float[Tensor, "_head rows key"]]]:
        """All weights of a sequence in strips of whole rows, each of about `n_weight` weights."""
        batch, _ = self._at(batch, 0 if head is None else head)
        n_head = self.n_head if head is None else 1
        step = max(1, n_weight // max(1, n_head * self.n_key))
        for first in range(0, self.n_query, step):
            rows = slice(first, min(self.n_query, first + step))
            yield rows, self.block(rows, slice(0, self.n_key), batch, head)[0]

    def pooled(
        self,
        batch: int,
        head: int,
        n_row: int,
        n_col: int,
        how: Pooling = "max",
        rows: slice = slice(None),
        cols: slice = slice(None),
    ) -> Float[Tensor, "n_row n_col"]:
        """An overview: the largest or mean weight of each of `n_row` x `n_col` blocks, never query x key.

        Blocks differ by at most one row or column in size. There are no more of them than rows or columns.
        """
        batch, head = self._at(batch, head)
        return self._pooled(batch, head, n_row, n_col, how, rows, cols)[0]

    def pooled_all(
        self,
        batch: int,
        n_row: int,
        n_col: int,
        how: Pooling = "max",
        rows: slice = slice(None),
        cols: slice = slice(None),
    ) -> Float[Tensor, "head n_row n_col"]:
        """`pooled` of every head."""
        batch, _ = self._at(batch, 0)
        return self._pooled(batch, None, n_row, n_col, how, rows, cols)

    def _pooled(
        self, batch: int, head: int | None, n_row: int, n_col: int, how: str, rows: slice, cols: slice
    ) -> Tensor:
        if how not in ("max", "mean"):
            raise ArgumentError(f"how must be 'max' or 'mean'. Got {how!r}.")
        if n_row < 1 or n_col < 1:
            raise ArgumentError(f"n_row and n_col count blocks: at least 1. Got {n_row} and {n_col}.")
        rows, cols = whole_slice("rows", rows, self.n_query), whole_slice("cols", cols, self.n_key)
        row_ends, col_ends = _block_ends(rows, n_row), _block_ends(cols, n_col)
        n_head = self.n_head if head is None else 1
        n_row, n_col = len(row_ends) - 1, len(col_ends) - 1
        out = self.tensors[0].new_zeros(n_head, n_row, n_col, dtype=torch.float32)
        tallest = max((b - a for a, b in pairwise(row_ends)), default=1)
        at_once = max(1, _BLOCK // max(1, n_head * (cols.stop - cols.start) * tallest))
        for first in range(0, n_row, at_once):
            last = min(n_row, first + at_once)
            strip = slice(row_ends[first], row_ends[last])
            reach = self.key_range(strip)
            # Blocks of columns wholly outside what these rows can see stay 0 and are not computed.
            begin = next((i for i in range(n_col) if col_ends[i + 1] > reach.start), n_col)
            end = next((i for i in range(n_col, 0, -1) if col_ends[i - 1] < reach.stop), 0)
            if begin >= end:
                continue
            part = self.block(strip, slice(col_ends[begin], col_ends[end]), batch, head)[0].float()
            part = _reduced(part, col_ends[begin : end + 1], how)
            part = _reduced(part.mT, row_ends[first : last + 1], how).mT
            out[:, first:last, begin:end] = part
        return out

    def _at(self, batch: int, head: int) -> tuple[int, int]:
        return whole_index("batch", batch, self.n_batch), whole_index("head", head, self.n_head)


@dataclass(frozen=True, slots=True)
class ScoreParts:
    """The numbers behind one weight: weight = exp(score - lse)."""

    q: tuple[float, ...]
    k: tuple[float, ...]
    products: tuple[float, ...]  # q * k, or w * tanh(q + k) where the scores are additive
    scale: float | None  # None: additive scores have none
    similarity: float  # scale * sum(products)
    softcap: float | None
    bias: float
    visible: bool
    score: float  # softcapped, with its bias; -inf where hidden
    lse: float
    weight: float


@dataclass(frozen=True, slots=True, eq=False)
class LayerTrace(AnyLayer):
    """Enough of one softmax-attention layer to recover any weight it used."""

    name: str
    q: Float[Tensor, "batch head query qk_dim"]  # after rotary positions and q/k norm
    k: Float[Tensor, "batch kv_head key qk_dim"]
    lse: Float[Tensor, "batch head query"]  # natural log; -inf: the row sees no key
    rule: ScoreRule
    v: Float[Tensor, "batch kv_head key v_dim"] | None = None
    kind: Kind = "self"
    sink: Float[Tensor, "head"] | None = None  # a score beside those of the keys: rows sum to less than 1
    # Rows of padding, mostly, whose keys are all hidden by one finite number: softmax sees them all alike.
    alike: Bool[Tensor, "_batch _head query"] | None = None

    def __post_init__(self) -> None:
        check_attention(self.q, self.k, self.v)
        if self.lse.shape != self.q.shape[:3]:
            raise ShapeError(
                f"lse must have one number for each query, {tuple(self.q.shape[:3])}. "
                f"Got shape {tuple(self.lse.shape)}."
            )
        if self.sink is not None and self.sink.shape != self.q.shape[1:2]:
            raise ShapeError(
                f"sink must be (head,) = ({self.q.shape[1]},). Got shape {tuple(self.sink.shape)}."
            )
        self.rule.check(self.q, self.k)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return (*self.q.shape[:3], self.k.shape[2])

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        held = (self.q, self.k, self.lse, self.v, self.sink, self.alike, *rule_tensors(self.rule).values())
        return tuple(tensor for tensor in held if tensor is not None)

    def key_range(self, rows: slice) -> slice:
        if self.alike is not None and bool(self.alike[:, :, rows].any()):
            return slice(0, self.n_key)
        return self.rule.visible.key_range(rows, self.n_key)

    def block(
        self, rows: slice, cols: slice, batch: int | None = None, head: int | None = None
    ) -> Float[Tensor, "_batch _head rows cols"]:
        q, k, rule = self._part(batch, head)
        scores = all_scores(q, k, rule, rows, cols, widen=head is not None)
        lse = one_of(one_of(self.lse, 0, batch), 1, head)[:, :, rows, None]
        # Hidden last: exp takes ten times as long where it is given -inf. A row may see nothing: its
        # log-sum-exp is -inf, and made finite so that a score of -inf stays one.
        weights = torch.exp(scores - lse.clamp_min(torch.finfo(lse.dtype).min))
        if not rule.visible.sees_all(rows, cols):
            weights = torch.where(rule.visible.tile(rows, cols, weights.device), weights, 0.0)
        if self.alike is not None:
            alike = one_of(one_of(self.alike, 0, batch), 1, head)[:, :, rows, None]
            weights = torch.where(alike, 1 / self.n_key, weights)
        return weights

    def visible_block(self, rows: slice, cols: slice, batch: int, head: int) -> Bool[Tensor, "rows cols"]:
        _, _, rule = self._part(batch, head)
        return rule.visible.tile(rows, cols, self.q.device)[0, 0]

    def score_parts(self, batch: int, head: int, query: int, key: int) -> ScoreParts:
        """How one weight came about: the vectors, their products, scale, bias, softcap, score and lse."""
        batch, head = self._at(batch, head)
        query, key = whole_index("query", query, self.n_query), whole_index("key", key, self.n_key)
        q, k, rule = self._part(batch, head)
        rows, cols = slice(query, query + 1), slice(key, key + 1)
        one_q, one_k = q[0, 0, query].float(), k[0, 0, key].float()
        scale = None if rule.additive is not None else rule.scale_for(q.shape[3])
        if rule.additive is not None:
            products = rule.additive.float() * torch.tanh(one_q + one_k)
        else:
            products = one_q * one_k
        bias = rule.bias_tile(rows, cols)
        visible = bool(rule.visible.tile(rows, cols, q.device))
        return ScoreParts(
            q=tuple(one_q.tolist()),
            k=tuple(one_k.tolist()),
            products=tuple(products.tolist()),
            scale=scale,
            similarity=float(rule.similarity(q[:, :, rows], k[:, :, cols])),
            softcap=rule.softcap,
            bias=0.0 if bias is None else float(bias),
            visible=visible,
            score=float(all_scores(q, k, rule, rows, cols)) if visible else -math.inf,
            lse=float(self.lse[batch, head, query]),
            weight=float(self.block(rows, cols, batch, head)),
        )

    def _part(self, batch: int | None, head: int | None) -> tuple[Tensor, Tensor, ScoreRule]:
        """q, k and rule of one sequence and head, or of all."""
        kv_head = None if head is None else head * self.k.shape[1] // self.n_head
        q, k = one_of(one_of(self.q, 0, batch), 1, head), one_of(one_of(self.k, 0, batch), 1, kv_head)
        return q, k, rule_part(self.rule, batch, head)


@dataclass(frozen=True, slots=True, eq=False)
class LinearLayerTrace(AnyLayer):
    """Enough of one kernelised attention layer to recover any weight it never formed.

    >>> from regard.attention.linear import feature_map
    >>> q = k = v = torch.zeros(1, 1, 3, 2)
    >>> layer = LinearLayerTrace.of("linear", q, k, v, feature_map("elu1"), causal=True)
    >>> layer.weights(0, 0)[1]
    tensor([0.5000, 0.5000, 0.0000])
    """

    name: str
    q: Float[Tensor, "batch head query qk_dim"]
    k: Float[Tensor, "batch kv_head key qk_dim"]
    normaliser: Float[Tensor, "batch head query"]  # sum_j phi(q_i) . phi(k_j); 0: the row sees nothing
    kernel: FeatureMap
    causal: bool = False  # the queries stand at the last positions of the keys
    keys: Bool[Tensor, "batch key"] | None = None  # False: padding
    v: Float[Tensor, "batch kv_head key v_dim"] | None = None
    kind: Kind = "self"

    def __post_init__(self) -> None:
        check_attention(self.q, self.k, self.v)
        if self.normaliser.shape != self.q.shape[:3]:
            raise ShapeError(
                f"the normaliser must have one number for each query, {tuple(self.q.shape[:3])}. "
                f"Got shape {tuple(self.normaliser.shape)}."
            )
        if self.causal and self.q.shape[2] > self.k.shape[2]:
            raise ShapeError(
                "with causal, queries stand at the last positions of the keys: there are at most as many. "
                f"Got {self.q.shape[2]} queries and {self.k.shape[2]} keys."
            )
        if self.keys is not None and self.keys.shape != (self.k.shape[0], self.k.shape[2]):
            raise ShapeError(
                f"keys must be (batch, key) = {(self.k.shape[0], self.k.shape[2])}. "
                f"Got shape {tuple(self.keys.shape)}."
            )
        self.kernel.dim(self.q.shape[3])  # raises where the map was drawn for another

    @classmethod
    def of(
        cls,
        name: str,
        q: Float[Tensor, "batch head query qk_dim"],
        k: Float[Tensor, "batch kv_head key qk_dim"],
        v: Float[Tensor, "batch kv_head key v_dim"],
        kernel: FeatureMap,
        *,
        causal: bool = False,
        visible: Bool[Tensor, "batch key"] | None = None,
        keep_v: bool = False,
    ) -> LinearLayerTrace:
        """The trace of `attend_linear` on these inputs."""
        normaliser = attend_linear(q, k, v, kernel, causal=causal, visible=visible).normaliser
        kept = v.detach() if keep_v else None
        return cls(name, q.detach(), k.detach(), normaliser.detach(), kernel, causal, visible, kept)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return (*self.q.shape[:3], self.k.shape[2])

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        held = (self.q, self.k, self.normaliser, self.keys, self.v)
        return tuple(tensor for tensor in held if tensor is not None)

    def key_range(self, rows: slice) -> slice:
        return self._visibility.key_range(rows, self.n_key)

    def block(
        self, rows: slice, cols: slice, batch: int | None = None, head: int | None = None
    ) -> Float[Tensor, "_batch _head rows cols"]:
        kv_head = None if head is None else head * self.k.shape[1] // self.n_head
        return linear_weights(
            one_of(one_of(self.q, 0, batch), 1, head),
            one_of(one_of(self.k, 0, batch), 1, kv_head),
            one_of(one_of(self.normaliser, 0, batch), 1, head),
            self.kernel,
            rows,
            cols,
            causal=self.causal,
            visible=None if self.keys is None else one_of(self.keys, 0, batch),
        )

    def visible_block(self, rows: slice, cols: slice, batch: int, head: int) -> Bool[Tensor, "rows cols"]:
        return visible_part(self._visibility, batch, head).tile(rows, cols, self.q.device)[0, 0]

    @property
    def _visibility(self) -> Visibility:
        start = self.n_key - self.n_query if self.causal else 0
        return Visibility(causal=self.causal, start=start, keys=self.keys)


@dataclass(frozen=True, slots=True, eq=False)
class DenseLayerTrace(AnyLayer):
    """Weights that somebody already has, as they are."""

    name: str
    values: Float[Tensor, "batch head query key"]
    kind: Kind = "self"
    visibility: Visibility | None = None  # None: unknown, and drawn as all visible

    def __post_init__(self) -> None:
        if self.values.dim() != 4:
            raise ShapeError(
                f"values must be (batch, head, query, key). Got shape {tuple(self.values.shape)}."
            )
        if self.visibility is not None:
            self.visibility.check(*self.shape)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        batch, head, query, key = self.values.shape
        return batch, head, query, key

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        hidden = () if self.visibility is None else visibility_tensors(self.visibility).values()
        return (self.values, *hidden)

    def block(
        self, rows: slice, cols: slice, batch: int | None = None, head: int | None = None
    ) -> Float[Tensor, "_batch _head rows cols"]:
        return one_of(one_of(self.values, 0, batch), 1, head)[:, :, rows, cols]

    def visible_block(self, rows: slice, cols: slice, batch: int, head: int) -> Bool[Tensor, "rows cols"]:
        visibility = Visibility() if self.visibility is None else self.visibility
        return visible_part(visibility, batch, head).tile(rows, cols, self.values.device)[0, 0]


def all_scores(q: Tensor, k: Tensor, rule: ScoreRule, rows: slice, cols: slice, widen: bool = True) -> Tensor:
    """Scores of `rows` x `cols`, hidden ones too, rounded as a kernel rounds them.

    What that did to lse then cancels. Kernels scale the product, not the query, and sum it in the order of a
    larger matrix product. With scores of 65, another order moves a weight by 1e-5, this one by 2e-6.
    """
    if rule.additive is not None or rule.softcap is not None:  # no kernel does these
        return replace(rule, visible=Visibility(start=rule.visible.start)).scores(q, k, rows, cols)
    wide_rows, wide_cols = rows, cols
    if widen:
        wide_rows, wide_cols = _widened(rows, q.shape[2]), _widened(cols, k.shape[2])
    products = replace(rule, scale=1.0).similarity(q[:, :, wide_rows], k[:, :, wide_cols])
    products = products[
        :,
        :,
        rows.start - wide_rows.start : rows.stop - wide_rows.start,
        cols.start - wide_cols.start : cols.stop - wide_cols.start,
    ]
    scores = products * rule.scale_for(q.shape[3])
    bias = rule.bias_tile(rows, cols)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    return scores


def _widened(part: slice, size: int) -> slice:
    """At least 16 positions where there are as many: products of fewer are summed in another order."""
    missing = max(0, min(16, size) - (part.stop - part.start))
    start = max(0, part.start - missing)
    return slice(start, max(part.stop, min(size, start + 16)) if missing else part.stop)


def whole_index(name: str, index: int, size: int) -> int:
    """The index counted from the front; raises where there is none."""
    if not -size <= index < size:
        raise ArgumentError(f"there is no {name} {index}: there are {size}, counted from 0.")
    return index % size


def whole_slice(name: str, part: slice, size: int) -> slice:
    """The slice with its ends filled in."""
    start, stop, step = part.indices(size)
    if step != 1:
        raise ArgumentError(f"{name} must be a slice without a step. Got {part}.")
    return slice(start, max(start, stop))


def _block_ends(part: slice, n_block: int) -> list[int]:
    """Where blocks of nearly equal size begin and end: one more number than there are blocks."""
    size = part.stop - part.start
    n_block = min(n_block, size)
    return [part.start + size * index // n_block for index in range(n_block + 1)] if n_block else [part.start]


def _reduced(table: Tensor, ends: list[int], how: str) -> Tensor:
    """The last axis pooled over the blocks between `ends`."""
    sizes = [b - a for a, b in pairwise(ends)]
    if min(sizes) == max(sizes):
        blocks: Tensor = table.unflatten(-1, (len(sizes), sizes[0]))
        return blocks.amax(-1) if how == "max" else blocks.mean(-1)
    # Sizes differ by one: a shorter block repeats its last column, which no maximum notices.
    first = torch.tensor(ends[:-1], device=table.device) - ends[0]
    size = torch.tensor(sizes, device=table.device)
    offset = torch.arange(max(sizes), device=table.device)
    blocks = table[..., first[:, None] + torch.minimum(offset, size[:, None] - 1)]
    if how == "max":
        return blocks.amax(-1)
    total: Tensor = (blocks * (offset < size[:, None])).sum(-1) / size
    return total
