"""Masks of other people's models, read into the compact rules of ours.

A mask comes as a table of query x key. Causality, windows, padding and a bias that depends only on distance
are recognised and kept as a flag, a number or a line of numbers; what is none of these is kept whole.
"""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.attention.scores import Bias, DenseBias, DistanceBias, ScoreRule
from regard.attention.visibility import Visibility, hidden_by
from regard.errors import ShapeError

_BLOCK = 1 << 21


@dataclass(frozen=True, slots=True, eq=False)
class ReadMask:
    """A mask in our terms."""

    visible: Visibility
    bias: Bias | None
    alike: Tensor | None = None  # (batch, head, query): rows that a finite number hides whole


class MaskReader:
    """Reads masks, each once: the layers of a model mostly share theirs."""

    def __init__(self) -> None:
        self._read: dict[tuple[Any, ...], tuple[weakref.ref[Tensor], ReadMask]] = {}

    def __call__(self, mask: Tensor | None, shape: tuple[int, int, int, int]) -> ReadMask:
        """What a mask of a call with (batch, head, query, key) says; None hides nothing."""
        if mask is None:
            return ReadMask(Visibility(), None)
        # A slice of the same table is another object for every layer, of the same base.
        base: Tensor = mask if mask._base is None else mask._base
        key = (id(base), mask.data_ptr(), mask.shape, mask.stride(), mask.dtype, mask._version, shape)
        known = self._read.get(key)
        if known is not None and known[0]() is base:
            return known[1]
        read = read_mask(mask, shape)
        self._read = {key: entry for key, entry in self._read.items() if entry[0]() is not None}
        self._read[key] = (weakref.ref(base), read)
        return read


def read_mask(mask: Tensor, shape: tuple[int, int, int, int]) -> ReadMask:
    """A mask as `scaled_dot_product_attention` takes it: boolean (True = may look) or added to scores."""
    table = _unrepeated(mask.detach(), shape)
    if table.dtype == torch.bool:
        return ReadMask(read_visible(table, shape[2]), None)
    hides = hidden_by(table)
    visible = read_visible(~hides, shape[2])
    softly_blind = hides.all(-1) & table.isfinite().any(-1)
    alike = softly_blind.expand(-1, -1, shape[2]) if bool(softly_blind.any()) else None
    bias = table.masked_fill(hides, 0.0)
    return ReadMask(visible, compact_bias(bias, hides, visible.start) if bool(bias.any()) else None, alike)


def read_visible(visible: Tensor, n_query: int | None = None) -> Visibility:
    """What a table (batch, head, query, key) says, True = may look, as compactly as it can be said.

    One row may stand for all of `n_query`.
    """
    if bool(visible.all()):
        return Visibility()
    for axis in (0, 1):
        if visible.shape[axis] > 1 and bool((visible == visible.narrow(axis, 0, 1)).all()):
            visible = visible.narrow(axis, 0, 1)
    if visible.shape[1:3] == (1, 1):
        return Visibility(keys=visible[:, 0, 0])
    return Visibility.from_dense(visible.expand(-1, -1, n_query or visible.shape[2], -1))


def compact_bias(bias: Tensor, hides: Tensor, start: int = 0, within: float = 0.0) -> Bias:
    """One number for each head and distance where that says it all, else the table itself.

    `within`: numbers that differ by no more are equal, as those that a subtraction gave back.
    """
    by_distance = _by_distance(bias, hides, start, within)
    if by_distance is not None:
        return by_distance
    for axis in (0, 1, 2):
        # A cell hidden in one sequence, head or row may be visible in another.
        shared = bias.masked_fill(hides, -math.inf).amax(axis, keepdim=True)
        if bias.shape[axis] > 1 and bool((((bias - shared).abs() <= within) | hides).all()):
            bias, hides = shared.masked_fill(shared == -math.inf, 0.0), hides.all(axis, keepdim=True)
    return DenseBias(bias)


def dense_bytes(rule: ScoreRule, n_query: int) -> int:
    """Bytes of the tables of query x key that a rule holds; 0 where it is compact."""
    tables = [t for t in rule.tensors if t.dim() == 4 and t.shape[2] == n_query > 1]
    return sum(t.numel() * t.element_size() for t in tables)


def _unrepeated(mask: Tensor, shape: tuple[int, int, int, int]) -> Tensor:
    """The mask as (batch or 1, head or 1, query or 1, key), without what is only repeated."""
    if mask.dim() > 4:
        raise ShapeError(f"a mask has at most 4 dimensions here. Got shape {tuple(mask.shape)}.")
    table = mask[(None,) * (4 - mask.dim())]
    for axis in (0, 1, 2):
        if table.stride(axis) == 0 and table.shape[axis] > 1:
            table = table.narrow(axis, 0, 1)
    if any(got not in (1, want) for got, want in zip(table.shape, shape, strict=True)):
        raise ShapeError(
            f"a mask must stretch to (batch, head, query, key) = {shape}. Got shape {tuple(mask.shape)}."
        )
    return table.expand(-1, -1, -1, shape[3])


def _by_distance(bias: Tensor, hides: Tensor, start: int, within: float) -> DistanceBias | None:
    """The bias as a line of numbers for each head, if all its visible cells depend on distance alone."""
    n_query, n_key = bias.shape[2:]
    if n_query == 1 and n_key > 1:
        return None
    lowest = torch.finfo(bias.dtype).min
    # A cell hidden in one sequence may be visible in another.
    shown = bias.masked_fill(hides, lowest).amax(0)
    before = torch.cat([shown[:, 1:, 0].flip(-1), shown[:, 0, :]], dim=-1)  # where each diagonal begins
    after = torch.cat([shown[:, -1, :], shown[:, :-1, -1].flip(-1)], dim=-1)  # and where it ends
    values = torch.where(before > lowest, before, after)
    line = DistanceBias(values.masked_fill(values == lowest, 0.0), n_query - 1 + start)
    step = max(1, _BLOCK // max(1, bias.shape[0] * bias.shape[1] * n_key))
    for first in range(0, n_query, step):
        rows = slice(first, min(n_query, first + step))
        drawn = line.tile(rows, slice(0, n_key), start)
        if not bool((((drawn - bias[:, :, rows]).abs() <= within) | hides[:, :, rows]).all()):
            return None
    return line
