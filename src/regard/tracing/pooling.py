"""The largest or mean weight of each block of a head, never query x key: overviews of long texts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from regard.tracing.layers import AnyLayer

Pooling = Literal["max", "mean"]

_BLOCK = 1 << 20  # weights made at once
_PLAIN_FROM = 1 << 16  # cells: below, every weight is made as the trace makes it, to the last bit


def block_ends(part: slice, n_block: int) -> list[int]:
    """Where blocks of nearly equal size begin and end: one more number than there are blocks."""
    size = part.stop - part.start
    n_block = min(n_block, size)
    return [part.start + size * index // n_block for index in range(n_block + 1)] if n_block else [part.start]


def pooled(
    layer: AnyLayer,
    batch: int | None,
    head: int | None,
    row_ends: Sequence[int],
    col_ends: Sequence[int],
    how: Pooling = "max",
) -> Float[Tensor, "_head n_row n_col"]:
    """The largest or mean weight of each block of one head, or of all (None)."""
    n_head = layer.n_head if head is None else 1
    out = layer.tensors[0].new_zeros(n_head, len(row_ends) - 1, len(col_ends) - 1, dtype=torch.float32)
    for block_rows, block_cols in _strips(layer, row_ends, col_ends, n_head):
        of_rows, of_cols = _ends(row_ends, block_rows), _ends(col_ends, block_cols)
        table = layer.block(_span(of_rows), _span(of_cols), batch, head)[0].float()
        out[:, block_rows, block_cols] = _reduced(_reduced(table, of_rows, -2, how), of_cols, -1, how)
    return out


def pooled_max(
    layer: AnyLayer,
    batch: int,
    head: int,
    row_ends: Sequence[int],
    col_ends: Sequence[int],
    lengths: Tensor | None = None,
) -> np.ndarray:
    """The largest weight of each block, NaN where all of it is hidden; times `lengths` of the keys if given.

    exp is monotone: of a large table the largest logarithm of a block is looked for, and that alone
    becomes a weight. A head of 8192 x 8192 is one matrix product in strips and one pass over it.
    """
    out = torch.full((len(row_ends) - 1, len(col_ends) - 1), math.nan)
    n_cell = (row_ends[-1] - row_ends[0]) * (col_ends[-1] - col_ends[0])
    product = layer.log_product(batch, head) if n_cell >= _PLAIN_FROM else None
    if product is not None and lengths is not None:  # exp of -1e4 is 0, as a length of 0 should be
        longer = lengths.log().clamp(min=-1e4)[None, :, None]
        product = (F.pad(product[0], (0, 1), value=1.0), torch.cat([product[1], longer], -1))
    for block_rows, block_cols in _strips(layer, row_ends, col_ends, 1):
        of_rows, of_cols = _ends(row_ends, block_rows), _ends(col_ends, block_cols)
        rows, cols = _span(of_rows), _span(of_cols)
        if product is not None:
            table = product[0][0, rows] @ product[1][0, cols].T
        else:
            table = layer.block(rows, cols, batch, head)[0, 0].float()
            table = table if lengths is None else table * lengths[cols]
        _hide(table, layer, rows, cols, batch, head)
        largest = _reduced(_reduced(table, of_rows, -2), of_cols, -1)
        weights = largest if product is None else largest.exp()
        out[block_rows, block_cols] = weights.masked_fill(largest == -math.inf, math.nan).cpu()
    return out.numpy()


def _hide(table: Tensor, layer: AnyLayer, rows: slice, cols: slice, batch: int, head: int) -> None:
    """-inf into the cells that may not be looked at."""
    visible, first = layer.visibility, cols.start
    if visible is None or visible.everything:
        return
    if visible.future_only:  # keys up to the first of these queries are seen by all of them
        first = min(cols.stop, max(cols.start, rows.start + visible.start + 1))
    if first < cols.stop:
        seen = layer.visible(rows, slice(first, cols.stop), batch, head)
        table[:, first - cols.start :].masked_fill_(~seen, -math.inf)


def _strips(
    layer: AnyLayer, row_ends: Sequence[int], col_ends: Sequence[int], n_head: int
) -> Iterator[tuple[slice, slice]]:
    """Blocks of rows, and those of columns that some of the rows can see: as many as are made at once."""
    n_row, n_col = len(row_ends) - 1, len(col_ends) - 1
    tallest = max((b - a for a, b in pairwise(row_ends)), default=1)
    at_once = max(1, _BLOCK // max(1, n_head * (col_ends[-1] - col_ends[0]) * tallest))
    for first in range(0, n_row, at_once):
        last = min(n_row, first + at_once)
        reach = layer.key_range(slice(row_ends[first], row_ends[last]))
        begin = next((i for i in range(n_col) if col_ends[i + 1] > reach.start), n_col)
        end = next((i for i in range(n_col, 0, -1) if col_ends[i - 1] < reach.stop), 0)
        if begin < end:
            yield slice(first, last), slice(begin, end)


def _ends(ends: Sequence[int], blocks: slice) -> Sequence[int]:
    return ends[blocks.start : blocks.stop + 1]


def _span(ends: Sequence[int]) -> slice:
    return slice(ends[0], ends[-1])


def _reduced(table: Tensor, ends: Sequence[int], axis: int, how: Pooling = "max") -> Tensor:
    """One axis pooled over the blocks between `ends`."""
    sizes = [b - a for a, b in pairwise(ends)]
    if min(sizes) == max(sizes):
        blocks: Tensor = table.unflatten(axis, (len(sizes), sizes[0]))
        return blocks.amax(axis) if how == "max" else blocks.mean(axis)
    # Sizes differ by one: a shorter block repeats its last entry, which no maximum notices.
    first = torch.tensor(ends[:-1], device=table.device)[:, None] - ends[0]
    size = torch.tensor(sizes, device=table.device)[:, None]
    offset = torch.arange(max(sizes), device=table.device)
    index = first + torch.minimum(offset, size - 1)
    blocks = table.index_select(axis, index.flatten()).unflatten(axis, index.shape)
    if how == "max":
        return blocks.amax(axis)
    share = (offset < size) / size
    mean: Tensor = (blocks * (share if axis == -1 else share[..., None])).sum(axis)
    return mean
