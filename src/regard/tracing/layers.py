"""One attention layer of a trace: enough of it to recover any weight.

LayerTrace        softmax attention: q, k and the row log-sum-exp; a weight is exp(score - lse)
LinearLayerTrace  kernelised attention: q, k and the row normaliser
DenseLayerTrace   weights that somebody already has

All three answer the same questions: a tile, a row, a column, the sums of columns, an overview pooled over
blocks.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from regard.attention.columns import column_sums
from regard.attention.data import Data
from regard.attention.feature_maps import FeatureMap
from regard.attention.linear import attend_linear, linear_weights
from regard.attention.scores import ScoreRule
from regard.attention.shapes import check_attention, check_rank, chosen, whole_index, whole_slice
from regard.attention.visibility import Visibility
from regard.errors import ArgumentError, ShapeError
from regard.layers.layer_id import Kind, LayerId
from regard.tracing.pooling import Pooling, block_ends, pooled

WeightBlock = Float[Tensor, "_batch _head rows cols"]
Tile = Float[Tensor, "rows cols"]
Matrices = Float[Tensor, "*batch_and_head query key"]
PerKey = Float[Tensor, "*head key"]
RowSums = Float[Tensor, "batch head rows"]
Shape = tuple[int, int, int, int]  # (batch, head, query, key)
LogProduct = tuple[Float[Tensor, "_head query wider"], Float[Tensor, "_kv_head key wider"]]

LARGE = 1 << 26  # weights: a whole matrix above this is worth a warning (256 MiB in float32)
TOO_LARGE = 1 << 32  # and one above this is refused (16 GiB)
BLOCK = 1 << 20  # weights worked on at once: near the caches, and enough to hide a block's other cost
MOST_ROWS = 128


class AnyLayer(Data, ABC):
    """What every traced layer can do, whatever its mechanism: a subclass gives `block` and `visibility`."""

    __slots__ = ()
    name: str
    kind: Kind
    q: Float[Tensor, "batch head query qk_dim"]  # where there are such
    k: Float[Tensor, "batch kv_head key qk_dim"] | None = None
    v: Float[Tensor, "batch kv_head key v_dim"] | None = None  # where values were kept
    rule: ScoreRule | None = None  # where scores are made by one

    @property
    def id(self) -> LayerId:
        """Which layer of the model it is: `name` taken apart."""
        return LayerId.parse(self.name, self.kind)

    @property
    def shape(self) -> Shape:
        """(batch, head, query, key)."""
        assert self.k is not None  # or a subclass knows better
        return (*self.q.shape[:3], self.k.shape[2])

    @property
    @abstractmethod
    def visibility(self) -> Visibility | None:
        """Who may look at whom; None where it is unknown, and drawn as all visible."""

    @abstractmethod
    def block(self, head: int | None, rows: slice, cols: slice, batch: int | None = None) -> WeightBlock:
        """Return weights of `rows` x `cols`, of one head or all (None), of one sequence or all (None)."""

    def factors(self, batch: int) -> dict[str, Tensor]:
        """Return what the weights of one sequence are recovered from, by the page's names."""
        return {"values": self.block(None, slice(0, self.n_query), slice(0, self.n_key), batch)[0]}

    def score_parts(self, head: int, query: int, key: int, batch: int = 0) -> ScoreParts:
        """Explain one weight, as far as the layer holds its parts: here the weight alone."""
        cell = self._cell(query, key)
        visible = bool(self.visible(head, *cell, batch))
        return ScoreParts(visible=visible, weight=float(self.tile(head, *cell, batch)))

    def key_range(self, rows: slice) -> slice:
        """Return the keys that some query of `rows` may see: weights outside are 0."""
        return (self.visibility or Visibility()).key_range(rows, self.n_key)

    def log_product(self, head: int | None = None, batch: int = 0) -> LogProduct | None:
        """Return queries and keys whose product is score - lse, the log of a weight, where there are such."""
        return None

    def row_sums(self, rows: slice) -> RowSums:
        """Return what each row must sum to: here what it does."""
        return self.block(None, rows, slice(0, self.n_key)).sum(-1)

    def rounding(self, rows: slice, cols: slice) -> tuple[float, float]:
        """Return how many roundings, of what size, a weighted sum of values may be off by."""
        return math.sqrt(self.n_key), 1.0

    @property
    def n_kv_head(self) -> int:
        return self.n_head if self.k is None else self.k.shape[1]

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

    def tile(self, head: int, rows: slice, cols: slice, batch: int = 0) -> Tile:
        """Return weights of `rows` x `cols` of one head: costs its own area only."""
        head_at, batch_at = self._at(head, batch)
        return self.block(head_at, *self._span(rows, cols), batch_at)[0, 0]

    def row(self, head: int, query: int, batch: int = 0) -> Float[Tensor, "key"]:
        """Return the weights of one query."""
        query = whole_index("query", query, self.n_query)
        return self.tile(head, slice(query, query + 1), slice(None), batch)[0]

    def column(self, head: int, key: int, batch: int = 0) -> Float[Tensor, "query"]:
        """Return the weights of all queries on one key."""
        key = whole_index("key", key, self.n_key)
        return self.tile(head, slice(None), slice(key, key + 1), batch)[:, 0]

    def weights(self, head: int | None, batch: int | None = 0) -> Matrices:
        """Return one head's whole matrix, or those of all heads or sequences (None); warn if it is large."""
        head, batch = self._at(head, batch)
        n_matrix = (self.n_batch if batch is None else 1) * (self.n_head if head is None else 1)
        n_weight = n_matrix * self.n_query * self.n_key
        if n_weight > LARGE:
            which = "one head's matrix" if n_matrix == 1 else f"{n_matrix} matrices"
            if n_weight > TOO_LARGE:
                raise ArgumentError(
                    f"{which} of {self.n_query} x {self.n_key} weights would take "
                    f"{n_weight * 4 / 2**30:.0f} GiB in float32: ask for a part with "
                    "tile, row or column, or an overview with pooled."
                )
            warnings.warn(
                f"{which} of {self.n_query} x {self.n_key} weights takes "
                f"{n_weight * 4 / 2**20:.0f} MiB in float32: use tile, row, column or pooled.",
                stacklevel=2,
            )
        whole = self.block(head, *self._span(slice(None), slice(None)), batch)
        whole = whole if batch is None else whole[0]
        return whole if head is None else whole.select(-3, 0)

    def visible(self, head: int, rows: slice, cols: slice, batch: int = 0) -> Bool[Tensor, "rows cols"]:
        """Return which cells of a tile are not masked: a masked one is not drawn as a weight of 0."""
        visible = (self.visibility or Visibility()).part(*self._at(head, batch))
        return visible.tile(*self._span(rows, cols), self.tensors[0].device)[0, 0]

    def column_sums(self, head: int | None = None, rows: slice = slice(None), batch: int = 0) -> PerKey:
        """Sum the weights of all queries, or of `rows`, on each key, for one head or all (None).

        In O(N) memory; a few rows at a time.
        """
        n_head, dtype = self.n_head if head is None else 1, self.tensors[0].dtype
        sums = self.tensors[0].new_zeros(n_head, self.n_key, dtype=torch.promote_types(dtype, torch.float32))
        for _, cols, weights in self.strips(head, rows, batch):
            sums[:, cols] += weights.sum(1)
        return sums if head is None else sums[0]

    def strips(
        self, head: int | None = None, rows: slice = slice(None), batch: int = 0
    ) -> Iterator[tuple[slice, slice, Float[Tensor, "_head rows cols"]]]:
        """Yield all weights of a sequence in strips: some rows, the keys that they see, and their weights."""
        head_at, batch_at = self._at(head, batch)
        for strip, cols in self.row_blocks(self.n_head if head is None else 1, rows):
            yield strip, cols, self.block(head_at, strip, cols, batch_at)[0]

    def row_blocks(self, n_head: int, rows: slice = slice(None)) -> Iterator[tuple[slice, slice]]:
        """Yield slices of queries and the keys they see, of about BLOCK weights of so many heads."""
        rows, _ = self._span(rows, slice(None))
        first = rows.start
        while first < rows.stop:
            # More rows waste more on the future; with one head, the fixed cost of a block weighs more.
            step = min(MOST_ROWS if n_head > 1 else 4 * MOST_ROWS, rows.stop - first)
            cols = self.key_range(slice(first, first + step))
            while step > 1 and n_head * step * (cols.stop - cols.start) > BLOCK:
                step = max(1, min(step - 1, BLOCK // (n_head * (cols.stop - cols.start))))
                cols = self.key_range(slice(first, first + step))
            if cols.stop == cols.start and self.n_key:  # sees nothing: one key, of weight 0
                cols = slice(0, 1)
            yield slice(first, first + step), cols
            first += step

    def pooled(
        self,
        head: int | None,
        n_row: int,
        n_col: int,
        how: Pooling = "max",
        rows: slice = slice(None),
        cols: slice = slice(None),
        batch: int = 0,
    ) -> Float[Tensor, "*head n_row n_col"]:
        """Pool weights: the largest or the mean of each of `n_row` x `n_col` blocks, never query x key.

        Blocks differ by at most one row or column in size. There are no more of them than rows or columns.
        Without a head (None) those of all, head by head.
        """
        if how not in ("max", "mean"):
            raise ArgumentError(f"how must be 'max' or 'mean'. Got {how!r}.")
        if n_row < 1 or n_col < 1:
            raise ArgumentError(f"n_row and n_col count blocks: at least 1. Got {n_row} and {n_col}.")
        rows, cols = self._span(rows, cols)
        head_at, batch_at = self._at(head, batch)
        n_head = self.n_head if head is None else 1

        def table(rows: slice, cols: slice) -> Tensor:
            return self.block(head_at, rows, cols, batch_at)[0].float()

        tables = pooled(table, self, n_head, (block_ends(rows, n_row), block_ends(cols, n_col)), how)
        return tables if head is None else tables[0]

    def _at(self, head: int | None, batch: int | None) -> tuple[int | None, int | None]:
        """The indices of a head and a sequence, counted from 0; None: all of them."""
        return (
            None if head is None else whole_index("head", head, self.n_head),
            None if batch is None else whole_index("batch", batch, self.n_batch),
        )

    def _span(self, rows: slice, cols: slice) -> tuple[slice, slice]:
        return whole_slice("rows", rows, self.n_query), whole_slice("cols", cols, self.n_key)

    def _cell(self, query: int, key: int) -> tuple[slice, slice]:
        query, key = whole_index("query", query, self.n_query), whole_index("key", key, self.n_key)
        return slice(query, query + 1), slice(key, key + 1)

    def of_head(self, tensor: Tensor, head: int | None, batch: int | None) -> Tensor:
        """Select what one head and sequence use of a tensor (batch, head or kv_head, ...); None: all."""
        shared = None if head is None else head * tensor.shape[1] // self.n_head
        return chosen(chosen(tensor, 0, batch), 1, shared)


@dataclass(frozen=True, slots=True, repr=False)
class ScoreParts(Data):
    """The numbers behind one weight, as far as they are held: weight = exp(score - lse) of softmax attention.

    For linear attention q and k are features, lse is the normaliser, and there is no score.

    Attributes:
        visible: Whether the query may see the key.
        weight: The weight.
        q: The query vector.
        k: The key vector.
        products: q * k entry by entry, or w * tanh(q + k) where scores are additive.
        additive: Whether scores are additive.
        scale: What the dot product is multiplied by; None for additive scores.
        similarity: The scaled sum of the products.
        softcap: The bound of a softcap, if there is one.
        bias: What is added to the score.
        score: The score, softcapped and with its bias; -inf where masked.
        lse: The log-sum-exp of the row.
    """

    visible: bool
    weight: float
    q: tuple[float, ...] = ()
    k: tuple[float, ...] = ()
    products: tuple[float, ...] = ()
    additive: bool = False
    scale: float | None = None
    similarity: float = 0.0
    softcap: float | None = None
    bias: float = 0.0
    score: float | None = None
    lse: float | None = None

    @property
    def unhidden(self) -> float:
        """The score as it would be if nothing were hidden."""
        capped = self.similarity
        if self.softcap is not None:
            capped = self.softcap * math.tanh(capped / self.softcap)
        return capped + self.bias


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LayerTrace(AnyLayer):
    """Enough of one softmax-attention layer to recover any weight it used.

    Attributes:
        name: Its name in the model.
        q: Queries, after rotary positions and QK-norm.
        k: Keys, likewise.
        lse: The natural log of each row's sum of exponentials; -inf where the row sees no key. In float64
            where scores are large, since its rounding would show.
        rule: How scores are computed and which keys are masked.
        v: Values, where they were kept.
        kind: "self" or "cross".
        uniform_rows: Rows, mostly of padding, whose keys are all masked by one finite number: softmax weighs
            all of them equally.
    """

    name: str
    q: Float[Tensor, "batch head query qk_dim"]
    k: Float[Tensor, "batch kv_head key qk_dim"] = field()  # not the None of the base
    lse: Float[Tensor, "batch head query"]
    rule: ScoreRule = field()
    v: Float[Tensor, "batch kv_head key v_dim"] | None = None
    kind: Kind = "self"
    uniform_rows: Bool[Tensor, "_batch _head query"] | None = None
    word: ClassVar[str] = "softmax"

    def __post_init__(self) -> None:
        check_attention(self.q, self.k, self.v)
        _check_shape("lse must have one number for each query,", self.lse, self.q.shape[:3])
        self.rule.check(self.q, self.k)

    @property
    def visibility(self) -> Visibility:
        return self.rule.visible

    def key_range(self, rows: slice) -> slice:
        if self.uniform_rows is not None and bool(self.uniform_rows[:, :, rows].any()):
            return slice(0, self.n_key)
        return self.rule.visible.key_range(rows, self.n_key)

    def block(self, head: int | None, rows: slice, cols: slice, batch: int | None = None) -> WeightBlock:
        q, k, lse, rule = self._part(head, batch)
        scores = all_scores(q, k, rule, rows, cols, widen=head is not None)
        lse = lse[:, :, rows, None]
        # Hidden last: exp takes ten times as long where it is given -inf. A row may see nothing: its
        # log-sum-exp is -inf, and made finite so that a score of -inf stays one.
        weights = torch.exp(scores - lse.clamp_min(torch.finfo(lse.dtype).min)).to(scores.dtype)
        if not rule.visible.sees_all(rows, cols):
            weights = torch.where(rule.visible.tile(rows, cols, weights.device), weights, 0.0)
        if self.uniform_rows is not None:
            uniform_rows = self.of_head(self.uniform_rows, head, batch)[:, :, rows, None]
            weights = torch.where(uniform_rows, 1 / self.n_key, weights)
        return weights

    def log_product(self, head: int | None = None, batch: int = 0) -> LogProduct | None:
        if not self.rule.product_only or self.uniform_rows is not None:
            return None
        dtype = torch.promote_types(self.q.dtype, torch.float32)
        q, k, lse = (self.of_head(tensor, head, batch).to(dtype) for tensor in (self.q, self.k, self.lse))
        # A row that sees nothing is hidden everywhere: any finite number serves in the place of its -inf.
        lse = lse.masked_fill(lse == -math.inf, 0.0)[..., None]
        wider_q = torch.cat([q * self.rule.scale_for(q.shape[3]), -lse], -1)
        return wider_q[0], F.pad(k, (0, 1), value=1.0)[0]

    def column_sums(self, head: int | None = None, rows: slice = slice(None), batch: int = 0) -> PerKey:
        if self.uniform_rows is not None:  # rows that no rule explains
            return AnyLayer.column_sums(self, head, rows, batch)
        sums = column_sums(*self._part(*self._at(head, batch)), self._span(rows, slice(None))[0])[0]
        return sums if head is None else sums[0]

    def row_sums(self, rows: slice) -> RowSums:
        """Return what each row must sum to: 1, or 0 where it sees nothing, less what a sink takes."""
        lse = self.lse[:, :, rows]
        wanted = (lse > -math.inf).to(lse.dtype)
        if self.uniform_rows is not None:
            wanted = torch.where(self.uniform_rows[:, :, rows], 1.0, wanted)
        if self.rule.sink is None:
            return wanted
        return wanted - torch.where(wanted > 0, torch.exp(self.rule.sink[:, None] - lse), 0.0)

    def rounding(self, rows: slice, cols: slice) -> tuple[float, float]:
        """Return how many roundings, of what size, a weight may be off by, relative to itself.

        A score is off by some roundings of sum |q||k|, which is at most |q| |k|, and its weight by as much of
        itself.
        """
        rule, qk_dim = self.rule, self.q.shape[3]
        if rule.additive is not None:
            size = float(rule.additive.abs().sum())
        else:
            # Hidden keys may be anything.
            lengths = torch.linalg.vector_norm(self.k[:, :, cols].float(), dim=-1).nan_to_num(0.0, posinf=0.0)
            longest_q = reach(torch.linalg.vector_norm(self.q[:, :, rows].float(), dim=-1))
            size = abs(rule.scale_for(qk_dim)) * longest_q * reach(lengths)
        bias = rule.bias_tile(rows, cols)
        return 2 + math.sqrt(qk_dim), size + (0.0 if bias is None else reach(bias))

    def score_parts(self, head: int, query: int, key: int, batch: int = 0) -> ScoreParts:
        """Explain one weight: the vectors, their products, scale, bias, softcap, score and lse."""
        parts = AnyLayer.score_parts(self, head, query, key, batch)
        rows, cols = self._cell(query, key)
        q, k, lse, rule = self._part(*self._at(head, batch))
        one_q, one_k, w = q[0, 0, rows.start].float(), k[0, 0, cols.start].float(), rule.additive
        products = one_q * one_k if w is None else w.float() * torch.tanh(one_q + one_k)
        bias = rule.bias_tile(rows, cols)
        return replace(
            parts,
            q=tuple(one_q.tolist()),
            k=tuple(one_k.tolist()),
            products=tuple(products.tolist()),
            additive=w is not None,
            scale=rule.scale_for(q.shape[3]) if w is None else None,
            similarity=float(rule.similarity(q[:, :, rows], k[:, :, cols])),
            softcap=rule.softcap,
            bias=0.0 if bias is None else float(bias),
            score=float(all_scores(q, k, rule, rows, cols)) if parts.visible else -math.inf,
            lse=float(lse[0, 0, rows]),
        )

    def factors(self, batch: int) -> dict[str, Tensor]:
        factors = {"q": self.q[batch], "k": self.k[batch], "lse": self.lse[batch]}
        return factors if self.rule.additive is None else factors | {"additive": self.rule.additive}

    def _part(self, head: int | None, batch: int | None) -> tuple[Tensor, Tensor, Tensor, ScoreRule]:
        """q, k, lse and rule of one head and sequence, or of all."""
        q, k, lse = (self.of_head(tensor, head, batch) for tensor in (self.q, self.k, self.lse))
        return q, k, lse, self.rule.part(head, batch)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LinearLayerTrace(AnyLayer):
    """Enough of one kernelised attention layer to recover any weight, though it never formed one.

    Attributes:
        name: Its name in the model.
        q: Queries.
        k: Keys.
        normaliser: The sum over keys of phi(q_i) . phi(k_j), one for each row; 0 where it sees nothing.
        feature_map: The function phi.
        causal: Whether a query sees no later key; queries are at the last positions of the keys.
        key_mask: False where a key is padding.
        v: Values, where they were kept.
        kind: "self" or "cross".

    Example:
        >>> from regard.attention import feature_map
        >>> q = k = v = torch.zeros(1, 1, 3, 2)
        >>> layer = LinearLayerTrace.of("linear", q, k, v, feature_map("elu1"), causal=True)
        >>> layer.weights(head=0)[1]
        tensor([0.5000, 0.5000, 0.0000])
    """

    name: str
    q: Float[Tensor, "batch head query qk_dim"]
    k: Float[Tensor, "batch kv_head key qk_dim"] = field()
    normaliser: Float[Tensor, "batch head query"]
    feature_map: FeatureMap
    causal: bool = False
    key_mask: Bool[Tensor, "batch key"] | None = None
    v: Float[Tensor, "batch kv_head key v_dim"] | None = None
    kind: Kind = "self"
    word: ClassVar[str] = "linear"
    older_names: ClassVar[Mapping[str, str]] = {"kernel": "feature_map", "keys": "key_mask"}

    def __post_init__(self) -> None:
        check_attention(self.q, self.k, self.v)
        _check_shape("the normaliser must have one number for each query,", self.normaliser, self.q.shape[:3])
        if self.causal and self.q.shape[2] > self.k.shape[2]:
            raise ShapeError(
                "with causal, queries stand at the last positions of the keys: there are at most as many. "
                f"Got {self.q.shape[2]} queries and {self.k.shape[2]} keys."
            )
        _check_shape("key_mask must be (batch, key) =", self.key_mask, (self.k.shape[0], self.k.shape[2]))
        self.feature_map.dim(self.q.shape[3])  # raises where the map was drawn for another

    @classmethod
    def of(
        cls,
        name: str,
        q: Float[Tensor, "batch head query qk_dim"],
        k: Float[Tensor, "batch kv_head key qk_dim"],
        v: Float[Tensor, "batch kv_head key v_dim"],
        feature_map: FeatureMap,
        *,
        causal: bool = False,
        key_mask: Bool[Tensor, "batch key"] | None = None,
        keep_v: bool = False,
    ) -> LinearLayerTrace:
        """Build the trace of `attend_linear` on these inputs."""
        normaliser = attend_linear(q, k, v, feature_map, causal=causal, key_mask=key_mask).normaliser
        kept = v.detach() if keep_v else None
        return cls(name, q.detach(), k.detach(), normaliser.detach(), feature_map, causal, key_mask, kept)

    @property
    def visibility(self) -> Visibility:
        start = self.n_key - self.n_query if self.causal else 0
        return Visibility(causal=self.causal, start=start, key_mask=self.key_mask)

    def block(self, head: int | None, rows: slice, cols: slice, batch: int | None = None) -> WeightBlock:
        q, k, normaliser = (self.of_head(tensor, head, batch) for tensor in (self.q, self.k, self.normaliser))
        key_mask = None if self.key_mask is None else chosen(self.key_mask, 0, batch)
        return linear_weights(
            q, k, normaliser, self.feature_map, rows, cols, causal=self.causal, key_mask=key_mask
        )

    def score_parts(self, head: int, query: int, key: int, batch: int = 0) -> ScoreParts:
        """Explain one weight: its features, their products and sum, and the normaliser of its row."""
        parts = AnyLayer.score_parts(self, head, query, key, batch)
        rows, cols = self._cell(query, key)
        at = self._at(head, batch)
        q = self.feature_map.phi_query(self.of_head(self.q, *at)[0, 0, rows].float())[0]
        k = self.feature_map.phi(self.of_head(self.k, *at)[0, 0, cols].float())[0]
        return replace(
            parts,
            q=tuple(q.tolist()),
            k=tuple(k.tolist()),
            products=tuple((q * k).tolist()),
            similarity=float(q @ k),
            lse=float(self.of_head(self.normaliser, *at)[0, 0, rows]),
        )

    def factors(self, batch: int) -> dict[str, Tensor]:
        q, k = self.feature_map.phi_query(self.q[batch].float()), self.feature_map.phi(self.k[batch].float())
        return {"q": q, "k": k, "normaliser": self.normaliser[batch]}

    def row_sums(self, rows: slice) -> RowSums:
        """Return what each row must sum to: 1, or 0 where it sees nothing."""
        return (self.normaliser[:, :, rows] > 0).float()

    def rounding(self, rows: slice, cols: slice) -> tuple[float, float]:
        """Return how many roundings, of what size, a weight may be off by: sqrt(n) for n positive terms."""
        return 4 * math.sqrt(self.n_key + self.feature_map.dim(self.q.shape[3])), 1.0


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DenseLayerTrace(AnyLayer):
    """Weights that somebody already has, as they are.

    Attributes:
        name: The name of the layer.
        values: The weights.
        kind: "self" or "cross".
        visibility: Who may look at whom; None where it is unknown.
        v: Values, where they were kept.
    """

    name: str
    values: Float[Tensor, "batch head query key"]
    kind: Kind = "self"
    visibility: Visibility | None = None
    v: Float[Tensor, "batch kv_head key v_dim"] | None = None
    word: ClassVar[str] = "dense"

    def __post_init__(self) -> None:
        check_rank("values", self.values, ("batch", "head", "query", "key"))
        if self.visibility is not None:
            self.visibility.check(*self.shape)

    @property
    def shape(self) -> Shape:
        batch, head, query, key = self.values.shape
        return batch, head, query, key

    def key_range(self, rows: slice) -> slice:
        return slice(0, self.n_key)  # weights that are given may be anywhere

    def block(self, head: int | None, rows: slice, cols: slice, batch: int | None = None) -> WeightBlock:
        return self.of_head(self.values, head, batch)[:, :, rows, cols]


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
    for axis, part, wide in ((2, rows, wide_rows), (3, cols, wide_cols)):
        products = products.narrow(axis, part.start - wide.start, part.stop - part.start)
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


def _check_shape(rule: str, tensor: Tensor | None, wanted: Sequence[int]) -> None:
    if tensor is not None and tuple(tensor.shape) != tuple(wanted):
        raise ShapeError(f"{rule} {tuple(wanted)}. Got shape {tuple(tensor.shape)}.")


def reach(values: Tensor) -> float:
    """The largest absolute value, NaN where one is NaN; 0 of none. An infinity norm takes much longer."""
    if not values.numel():
        return 0.0
    least, most = values.aminmax()
    return float(torch.maximum(-least, most))
