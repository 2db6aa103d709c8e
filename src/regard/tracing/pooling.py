"""The largest or mean weight of each block of a head, never query x key: overviews of long texts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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


def pooled_max(
    layer: AnyLayer,
    head: int,
    row_ends: Sequence[int],
    col_ends: Sequence[int],
    batch: int = 0,
    lengths: Tensor | None = None,
) -> np.ndarray:
    """The largest weight of each block, NaN where all of it is hidden; times `lengths` of the keys if given.

    exp is monotone: of a large table the largest logarithm of a block is looked for, and that alone
    becomes a weight. A head of 8192 x 8192 is one matrix product in strips and one pass over it.
    """
    n_cell = (row_ends[-1] - row_ends[0]) * (col_ends[-1] - col_ends[0])
    product = layer.log_product(head, batch) if n_cell >= _PLAIN_FROM else None
    if product is not None and lengths is not None:  # exp of -1e4 is 0, as a length of 0 should be
        longer = lengths.log().clamp(min=-1e4)[None, :, None]
        product = (F.pad(product[0], (0, 1), value=1.0), torch.cat([product[1], longer], -1))

    def table(rows: slice, cols: slice) -> Tensor:
        if product is not None:
            cells = product[0][:, rows] @ product[1][:, cols].mT
        else:
            cells = layer.block(head, rows, cols, batch)[0].float()
            cells = cells if lengths is None else cells * lengths[cols]
        visible, first = layer.visibility, cols.start
        if visible is None or visible.everything:
            return cells
        if visible.future_only:  # keys up to the first of these queries are seen by all of them
            first = min(cols.stop, max(cols.start, rows.start + visible.start + 1))
        seen = layer.visible(head, rows, slice(first, cols.stop), batch)
        cells[..., first - cols.start :].masked_fill_(~seen, -math.inf)
        return cells

    largest = pooled(table, layer, 1, (row_ends, col_ends), "max", -math.inf)[0]
    weights = largest if product is None else largest.exp()
    return weights.masked_fill(largest == -math.inf, math.nan).cpu().numpy()


def pooled(
    table: Callable[[slice, slice], Tensor],
    layer: AnyLayer,
    n_head: int,
    ends: tuple[Sequence[int], Sequence[int]],
    how: Pooling,
    empty: float = 0.0,
) -> Float[Tensor, "n_head n_row n_col"]:
    """The largest or mean of each block, between the `ends` of rows and columns, of a `table` of a layer.

    `empty` where no row of a block can see one of its keys. As many blocks of rows are made at once as fit,
    with the blocks of columns that some of the rows can see.
    """
    row_ends, col_ends = ends
    n_row, n_col = len(row_ends) - 1, len(col_ends) - 1
    out = layer.tensors[0].new_full((n_head, n_row, n_col), empty, dtype=torch.float32)
    tallest = max((b - a for a, b in pairwise(row_ends)), default=1)
    at_once = max(1, _BLOCK // max(1, n_head * (col_ends[-1] - col_ends[0]) * tallest))
    for first in range(0, n_row, at_once):
        of_rows = row_ends[first : first + at_once + 1]
        reach = layer.key_range(slice(of_rows[0], of_rows[-1]))
        seen = [i for i, (a, b) in enumerate(pairwise(col_ends)) if b > reach.start and a < reach.stop]
        if seen:
            of_cols = col_ends[seen[0] : seen[-1] + 2]
            cells = table(slice(of_rows[0], of_rows[-1]), slice(of_cols[0], of_cols[-1]))
            cells = _reduced(_reduced(cells, of_rows, -2, how), of_cols, -1, how)
            out[:, first : first + at_once, seen[0] : seen[-1] + 1] = cells
    return out


def _reduced(table: Tensor, ends: Sequence[int], axis: int, how: Pooling) -> Tensor:
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
