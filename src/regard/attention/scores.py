"""The score of a query and a key, before the softmax: any tile of it, on its own.

dot product   scale * (q_i . k_j), softcapped, plus a bias, -inf where hidden
additive      w . tanh(q_i + k_j), for q and k already projected (Bahdanau et al. 2015, A.1.2)
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from regard.attention.data import Data
from regard.attention.shapes import Keys, Queries, check_sizes, chosen, whole_slice
from regard.attention.visibility import Visibility
from regard.errors import ArgumentError, ShapeError, UnsupportedError


class Bias(Data, ABC):
    """Something added to the scores that can draw any tile of itself: a dataclass.

    One of your own needs `tile` and `check`; `part` too where it is traced.
    """

    __slots__ = ()

    @abstractmethod
    def tile(self, rows: slice, cols: slice, start: int) -> Float[Tensor, "_batch _head rows cols"]:
        """Return the bias of `rows` x `cols`, the first query of all being at position `start`."""

    @abstractmethod
    def check(self, batch: int, n_head: int, n_query: int, n_key: int, start: int) -> None:
        """Raise `ShapeError` unless it fits attention of these sizes."""

    def part(self, head: int | Sequence[int] | None, batch: int | Sequence[int] | None) -> Bias:
        """Return the bias of one sequence (None: all), and of one head, some or all."""
        raise UnsupportedError(
            f"{type(self).__name__} has no `part(batch, head)`, without which it is not traced."
        )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DistanceBias(Bias):
    """One number for each head and distance: T5's relative positions (Raffel et al. 2020, 2.1).

    Attributes:
        values: ``(head, distance)``; `values[head, zero + distance]` with distance = key_pos - query_pos.
        zero: The index of distance 0.
    """

    values: Float[Tensor, "head distance"]
    zero: int
    word: ClassVar[str] = "distance"

    def tile(self, rows: slice, cols: slice, start: int) -> Float[Tensor, "_batch _head rows cols"]:
        """Return the bias of `rows` x `cols`, the first query of all being at position `start`."""
        n_row, n_col = rows.stop - rows.start, cols.stop - cols.start
        if not n_row or not n_col:
            return self.values.new_zeros(1, self.values.shape[0], n_row, n_col)
        # Every row is a window of the same line of numbers, one step further left than the row above it.
        lowest = self.zero + cols.start - (start + rows.stop - 1)
        line = self.values[:, lowest : lowest + n_row + n_col - 1]
        return line.unfold(-1, n_col, 1).flip(1)[None]

    def part(self, head: int | Sequence[int] | None, batch: int | Sequence[int] | None) -> DistanceBias:
        """Return the bias of one sequence (None: all), and of one head, some or all."""
        return replace(self, values=chosen(self.values, 0, head))

    def check(self, batch: int, n_head: int, n_query: int, n_key: int, start: int) -> None:
        """Raise `ShapeError` unless it fits attention of these sizes."""
        _check_heads("the distance bias", self.values.shape[0], n_head)
        lowest, highest = -(start + n_query - 1), n_key - 1 - start
        if self.zero + lowest < 0 or self.zero + highest >= self.values.shape[1]:
            raise ShapeError(
                f"the distance bias covers distances {-self.zero} to {self.values.shape[1] - 1 - self.zero}, "
                f"attention needs {lowest} to {highest} (query {n_query} from position {start}, key {n_key})."
            )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SlopeBias(Bias):
    """A penalty that grows with distance, one slope for each head: ALiBi (Press et al. 2022).

    Attributes:
        slopes: ``(head,)``; each score is lowered by slope times distance.
    """

    slopes: Float[Tensor, "head"]
    word: ClassVar[str] = "slope"

    def tile(self, rows: slice, cols: slice, start: int) -> Float[Tensor, "_batch _head rows cols"]:
        """Return the bias of `rows` x `cols`, the first query of all being at position `start`."""
        device = self.slopes.device
        query_pos = torch.arange(start + rows.start, start + rows.stop, device=device)[:, None]
        distance = (torch.arange(cols.start, cols.stop, device=device)[None] - query_pos).abs()
        return -(self.slopes[:, None, None] * distance)[None]

    def part(self, head: int | Sequence[int] | None, batch: int | Sequence[int] | None) -> SlopeBias:
        """Return the bias of one sequence (None: all), and of one head, some or all."""
        return SlopeBias(chosen(self.slopes, 0, head))

    def check(self, batch: int, n_head: int, n_query: int, n_key: int, start: int) -> None:
        """Raise `ShapeError` unless it fits attention of these sizes."""
        _check_heads("the slopes", self.slopes.shape[0], n_head)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DenseBias(Bias):
    """A whole table of numbers, for what nothing more compact can say.

    Attributes:
        values: ``(batch or 1, head or 1, query or 1, key)``: added to the scores.
    """

    values: Float[Tensor, "_batch _head _query key"]
    word: ClassVar[str] = "dense"

    def tile(self, rows: slice, cols: slice, start: int) -> Float[Tensor, "_batch _head rows cols"]:
        """Return the bias of `rows` x `cols`, the first query of all being at position `start`."""
        n_row = rows.stop - rows.start
        shared = self.values.shape[2] == 1 and n_row
        return self.values[:, :, slice(0, 1) if shared else rows, cols].expand(-1, -1, n_row, -1)

    def part(self, head: int | Sequence[int] | None, batch: int | Sequence[int] | None) -> DenseBias:
        """Return the bias of one sequence (None: all), and of one head, some or all."""
        return DenseBias(chosen(chosen(self.values, 0, batch), 1, head))

    def check(self, batch: int, n_head: int, n_query: int, n_key: int, start: int) -> None:
        """Raise `ShapeError` unless it fits attention of these sizes."""
        wanted = (batch, n_head, n_query, n_key)
        fits = self.values.dim() == 4 and all(
            got == want or (axis < 3 and got == 1)
            for axis, (got, want) in enumerate(zip(self.values.shape, wanted, strict=True))
        )
        if not fits:
            raise ShapeError(
                "a dense bias must be (batch or 1, head or 1, query or 1, key). "
                f"Got {tuple(self.values.shape)}, attention has {wanted}."
            )


def _check_heads(what: str, got: int, n_head: int) -> None:
    if got not in (1, n_head):
        raise ShapeError(f"{what} must be given for 1 head or for each of {n_head}. Got {got}.")


def alibi_slopes(n_head: int) -> Float[Tensor, "head"]:
    """Return the slopes of Press et al. 2022: a geometric sequence that ends at 2^-8.

    Args:
        n_head: How many heads, at least 1.

    Returns:
        ``(head,)``, in float32.

    Example:
        >>> alibi_slopes(8)[:3].tolist()
        [0.5, 0.25, 0.125]
    """
    check_sizes(n_head=n_head)
    power = 1 << (n_head.bit_length() - 1)
    slopes = [2 ** (-8 * (head + 1) / power) for head in range(power)]
    # A head count that is no power of two takes every other slope of the next one, as the paper's code does.
    slopes += [2 ** (-4 * (2 * head + 1) / power) for head in range(n_head - power)]
    return torch.tensor(slopes)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ScoreRule(Data):
    """How a query and a key make a score. The default is the scaled dot product with nothing masked.

    Attributes:
        scale: Factor of the dot product. None: 1 / sqrt(qk_dim); T5 uses 1.
        visible: Which keys each query may look at; the others score -inf.
        bias: Added to the scores: ALiBi, relative positions, or any table. None: nothing.
        softcap: Scores become cap * tanh(score / cap), before bias and mask (Gemma 2). None: as they are.
        additive: ``(qk_dim,)``, the vector w of additive scores w . tanh(q + k) (Bahdanau et al. 2015), in
            the place of the dot product; it takes no scale.
        sink: ``(head,)``, a learned score beside those of the keys, of a key without a value: weights of
            a row then sum to less than 1 (gpt-oss).

    Raises:
        ArgumentError: If a number is out of range, or two fields exclude each other.
    """

    scale: float | None = None  # None: 1 / sqrt(qk_dim); T5 uses 1
    visible: Visibility = field(default_factory=Visibility)
    bias: Bias | None = None
    softcap: float | None = None  # cap * tanh(score / cap), before bias and visibility (Gemma 2)
    additive: Float[Tensor, "qk_dim"] | None = None  # the vector w of additive scores
    # A score beside those of the keys, of a key without a value: rows sum to less than 1 (gpt-oss).
    sink: Float[Tensor, "head"] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.visible, Visibility):
            raise ArgumentError(
                "visible must be a Visibility: a table of booleans, True = may look, becomes one with "
                f"Visibility.from_dense(table). Got {type(self.visible).__name__}."
            )
        if self.scale is not None and not math.isfinite(self.scale):
            raise ArgumentError(f"scale must be a finite number. Got {self.scale}.")
        if self.softcap is not None and not self.softcap > 0:
            raise ArgumentError(f"softcap must be above 0. Got {self.softcap}.")
        if self.additive is not None and self.scale is not None:
            raise ArgumentError("additive scores have no scale: give `additive` or `scale`, not both.")
        if self.bias is not None and not isinstance(self.bias, Bias):
            raise ArgumentError(
                f"bias must be a Bias, which can draw any tile. Got {type(self.bias).__name__}."
            )

    @property
    def learned(self) -> bool:
        """Whether the rule itself has something a gradient must reach."""
        tensors = (self.additive, *(() if self.bias is None else self.bias.tensors))
        return any(tensor is not None and tensor.requires_grad for tensor in tensors)

    def scale_for(self, qk_dim: int) -> float:
        """Return the factor of the dot product."""
        return 1 / math.sqrt(qk_dim) if self.scale is None else self.scale

    @property
    def product_only(self) -> bool:
        """Whether a score is a scaled product and nothing more, where visible."""
        return self.bias is None and self.softcap is None and self.additive is None

    def part(self, head: int | Sequence[int] | None, batch: int | Sequence[int] | None) -> ScoreRule:
        """Return the rule of one sequence (None: all), and of one head, some or all."""
        bias = None if self.bias is None else self.bias.part(head, batch)
        sink = None if self.sink is None else chosen(self.sink, 0, head)
        return replace(self, visible=self.visible.part(head, batch), bias=bias, sink=sink)

    def row_cost(self, q: Tensor, k: Tensor) -> int:
        """Count the numbers that the scores of one query position take, in all sequences and heads."""
        return q.shape[0] * q.shape[1] * k.shape[2] * (1 if self.additive is None else q.shape[3])

    def check(self, q: Tensor, k: Tensor) -> None:
        """Raise `ShapeError` unless the rule fits these queries and keys."""
        batch, n_head, n_query, qk_dim = q.shape
        n_key = k.shape[2]
        self.visible.check(batch, n_head, n_query, n_key)
        if self.visible.device is not None and self.visible.device != q.device:
            raise ShapeError(f"the visibility is on {self.visible.device} and q on {q.device}.")
        if self.bias is not None and n_query and n_key:
            self.bias.check(batch, n_head, n_query, n_key, self.visible.start)
        if self.additive is not None and self.additive.shape != (qk_dim,):
            raise ShapeError(
                f"the additive vector must be (qk_dim,) = ({qk_dim},). Got {tuple(self.additive.shape)}."
            )
        if self.sink is not None and (self.sink.shape != (n_head,) or not self.sink.is_floating_point()):
            raise ShapeError(
                f"sink must be (head,) = ({n_head},), a score for each. Got {tuple(self.sink.shape)} of "
                f"{self.sink.dtype}."
            )

    def scores(
        self, q: Queries, k: Keys, rows: slice | None = None, cols: slice | None = None
    ) -> Float[Tensor, "batch head rows cols"]:
        """Return the scores of `rows` x `cols` (all by default), -inf where masked; at least in float32."""
        rows = whole_slice("rows", rows, q.shape[2])
        cols = whole_slice("cols", cols, k.shape[2])
        scores = self.similarity(q[:, :, rows], k[:, :, cols])
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        bias = self.bias_tile(rows, cols)
        if bias is not None:
            scores = scores + bias.to(scores.dtype)
        if not self.visible.everything:
            visible = self.visible.tile(rows, cols, scores.device)
            scores = torch.where(visible, scores, -math.inf)
        return scores

    def bias_tile(self, rows: slice, cols: slice) -> Float[Tensor, "_batch _head rows cols"] | None:
        """Return what is added to the scores of `rows` x `cols`, if anything."""
        return None if self.bias is None else self.bias.tile(rows, cols, self.visible.start)

    def similarity(self, q: Queries, k: Keys) -> Float[Tensor, "batch head query key"]:
        """Return the product or additive score alone: no softcap, bias or mask. Keys are never repeated."""
        compute = torch.promote_types(q.dtype, torch.float32)
        q, k = q.to(compute), k.to(compute)
        batch, n_head, n_query, qk_dim = q.shape
        n_kv_head, n_key = k.shape[1:3]
        grouped = q.reshape(batch, n_kv_head, n_head // n_kv_head * n_query, qk_dim)
        with no_autocast(q.device):
            if self.additive is not None:
                hidden = torch.tanh(grouped[..., :, None, :] + k[..., None, :, :])
                scores = hidden @ self.additive.to(compute)
            else:
                scale = self.scale_for(qk_dim)
                scores = (grouped if abs(scale) >= 1 else grouped * scale) @ k.transpose(-1, -2)
                if abs(scale) > 1 or scale == -1:  # the smaller product first: neither should overflow
                    scores = scores * scale
        return scores.reshape(batch, n_head, n_query, n_key)


def no_autocast(device: torch.device) -> AbstractContextManager[object]:
    """A block in which products keep the dtype they are given: autocast would round scores to bfloat16."""
    available = torch.amp.autocast_mode.is_autocast_available(device.type)  # the meta device has none
    if available and torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()
