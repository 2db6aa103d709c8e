"""One attention layer read once, in blocks of rows of some heads: what `measures.py` is made of.

A block's weights are exp(z) with z = score - lse. One product gives z (`log_product` of the layer), and a
second, narrow one sums the weights over kinds of keys. What looks at fixed distances, at copies or at the
first key reads single cells.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from regard.attention.scores import no_autocast
from regard.attention.visibility import Visibility
from regard.heads import frames
from regard.heads.frames import (
    NEAR,
    OFFSETS,
    ROW_MEASURES,
    Cells,
    Frame,
    row_blocks,
    visibility_of,
)
from regard.tracing.layers import AnyLayer

_HIDDEN = -87.0  # exp of it is the smallest float32 with all its digits: 0 to every sum, and no NaN times it
_ENTROPY, _UNIFORMITY, _LARGEST, _FIRST, _SPECIAL = range(5)
_PREVIOUS = ROW_MEASURES.index("previous")  # then same and next, as offsets -1, 0, 1
_DISTANCE, _DUPLICATE, _ARGMAX = (ROW_MEASURES.index(name) for name in ("distance", "duplicate", "argmax-4"))
_BEFORE = _ARGMAX + OFFSETS.index(-1)

# Fills logarithms (very low for 0) and weights of some heads, rows and columns.
_Fill = Callable[[slice, slice, slice, Tensor, Tensor], None]


@torch.no_grad()
def layer_sums(
    layer: AnyLayer, cells: Cells, batch: int, *, share_ties: bool = False
) -> Float[Tensor, "measure head"]:
    """The sum over counted rows of each measure of each head; O(N) memory, each weight made once.

    A row of equal weights has no argmax; with `share_ties`, which is for the chance level, it falls on all
    of them alike.
    """
    frame, n_head, n_query, device = cells.frame, layer.n_head, layer.n_query, layer.tensors[0].device
    dtype = torch.promote_types(layer.tensors[0].dtype, torch.float32)
    fill, n_together = _filler(layer, batch)
    blocks = list(row_blocks(layer, n_together))
    size = max((n_together * (r.stop - r.start) * (c.stop - c.start) for r, c in blocks), default=0)
    buffers = [torch.empty(size, dtype=dtype, device=device) for _ in range(2)]
    n_kind, causal = frame.columns.shape[1], visibility_of(layer).causal
    columns = torch.zeros(n_kind + 2, layer.n_key, dtype=dtype, device=device)
    columns[:n_kind] = frame.columns.T
    key_pos = torch.arange(layer.n_key, device=device, dtype=dtype)
    # What each row gives; all that can be done for all rows at once waits until the end.
    summed = torch.zeros(n_kind + 2, n_head, n_query, dtype=dtype, device=device)
    entropy, largest, beside = torch.zeros(3, n_head, n_query, dtype=dtype, device=device)
    near = torch.zeros(n_head, n_query, NEAR, dtype=dtype, device=device)
    within = torch.zeros(n_query, dtype=dtype, device=device)
    groups = [slice(first, min(first + n_together, n_head)) for first in range(0, n_head, n_together)]
    copied: list[tuple[list[Tensor], list[Tensor]]] = [([], []) for _ in groups]
    with no_autocast(device):
        for rows, cols in blocks:
            n_row, n_col = rows.stop - rows.start, cols.stop - cols.start
            picked, n_near, n_duplicate = cells.of(rows, cols)
            if frame.start is not None:
                torch.arange(n_row, out=within[rows])
                _distance_columns(columns[n_kind:], key_pos, rows, frame.start, causal=causal)
                if not causal:
                    between, around = _own_positions(key_pos, rows, cols, frame.start)
            of_keys = columns[:, cols]
            for heads, (duplicate, induction) in zip(groups, copied, strict=True):
                n_here = heads.stop - heads.start
                z, w = (buffer[: n_here * n_row * n_col].view(n_here, n_row, n_col) for buffer in buffers)
                fill(heads, rows, cols, z, w)
                largest[heads, rows] = w.amax(-1)
                summed[:, heads, rows] = (of_keys @ w.view(-1, n_col).T).view(-1, n_here, n_row)
                single = w.view(n_here, -1).index_select(1, picked)
                near[heads, rows] = single[:, :n_near].view(n_here, n_row, NEAR)
                duplicate.append(single[:, n_near : n_near + n_duplicate].sum(-1))
                induction.append(single[:, n_near + n_duplicate :].sum(-1))
                if not causal and frame.start is not None:
                    beside[heads, rows] = (w[..., around] * between).sum(-1)
                entropy[heads, rows] = torch.mul(z, w, out=z).sum(-1)
    values = torch.zeros(len(ROW_MEASURES), n_head, n_query, dtype=dtype, device=device)
    values[_ENTROPY], values[_LARGEST], values[_FIRST] = -entropy, largest, near[..., -1]
    values[_SPECIAL : _SPECIAL + n_kind] = summed[:n_kind]
    if frame.start is not None:
        values[_ARGMAX:] = near[..., :-1].movedim(-1, 0)
        values[_DISTANCE] = summed[n_kind] * within + summed[n_kind + 1] + beside
    totals = _summed(values, frame, share_ties=share_ties)
    for index in range(2):
        parts = [torch.stack(sums[index]).double().sum(0) for sums in copied if sums[index]]
        totals[_DUPLICATE + index] = torch.cat(parts) if parts else 0.0
    return totals


def _summed(values: Tensor, frame: Frame, *, share_ties: bool) -> Tensor:
    """The sums over counted rows, from what each row gave."""
    n_visible = frame.n_visible.to(values.dtype)
    torch.div(values[_ENTROPY], n_visible.clamp(min=2).log(), out=values[_UNIFORMITY])
    values[_PREVIOUS : _PREVIOUS + 3] = values[_BEFORE : _BEFORE + 3]
    if not share_ties and frame.start is not None:
        # A row of equal weights has no largest: rounding alone would choose it.
        peaked = values[_LARGEST] * n_visible > 1.001
        values[_ARGMAX:] = (values[_ARGMAX:] >= values[_LARGEST]) & peaked
    counted = frame.counted.double()
    return torch.stack([of_rows.double() @ rows for of_rows, rows in zip(values, counted, strict=True)])


def _filler(layer: AnyLayer, batch: int) -> tuple[_Fill, int]:
    """A function that fills two buffers with a block, and how many heads it best fills at once."""
    visible = visibility_of(layer)
    product = layer.log_product(batch) if visible.future_only else None
    if product is not None:
        return _product_filler(*product, visible)

    def general(heads: slice, rows: slice, cols: slice, z: Tensor, w: Tensor) -> None:
        w.copy_(layer.block(rows, cols, batch)[0])
        torch.clamp(w, min=math.exp(_HIDDEN), out=z).log_()

    return general, layer.n_head


def _product_filler(q: Tensor, k: Tensor, visible: Visibility) -> tuple[_Fill, int]:
    """Blocks of exp(q.k), heads that share a key head in one product."""
    n_kv_head, n_query, n_key = k.shape[0], q.shape[1], k.shape[1]
    n_group = q.shape[0] // n_kv_head
    k = k.mT
    causal, start = visible.causal, visible.start
    masks: dict[tuple[int, int, int], Tensor] = {}  # blocks are alike: a few masks serve all

    def product(heads: slice, rows: slice, cols: slice, z: Tensor, w: Tensor) -> None:
        kv_heads = slice(heads.start // n_group, heads.stop // n_group)
        n_kv, n_row, n_col = kv_heads.stop - kv_heads.start, z.shape[1], z.shape[2]
        together = q[heads, rows].reshape(n_kv, n_group * n_row, -1)
        torch.bmm(together, k[kv_heads, :, cols], out=z.view(n_kv, -1, n_col))
        if causal:
            ahead = rows.start + start + 1 - cols.start
            first = max(0, ahead)  # before it, every row sees every key
            shape = (n_row, n_col - first, ahead - first)
            if shape not in masks:
                ones = torch.ones(*shape[:2], dtype=torch.bool, device=q.device)
                masks[shape] = ones.triu(shape[2])
            z[:, :, first:].masked_fill_(masks[shape], _HIDDEN)
        torch.exp(z, out=w)

    block = n_group * min(frames.MOST_ROWS, n_query) * n_key
    return product, n_group * max(1, min(n_kv_head, frames.BLOCK // max(1, block)))


def _distance_columns(columns: Tensor, key_pos: Tensor, rows: slice, start: int, *, causal: bool) -> None:
    """Columns whose sums give the distance of keys left and right of a block's own positions.

    With f the block's first position, |i - j| is (i - f) + (f - j) to the left and (f - i) + (j - f) to the
    right: a factor of i - f, and a number. Between, where both occur, the columns are 0; a causal row has
    weight on its left only, so that the first holds everywhere.
    """
    first, last = rows.start + start, rows.stop + start
    left = last if causal else first
    columns[0, :left] = 1.0
    torch.sub(first, key_pos[:left], out=columns[1, :left])
    if not causal:
        columns[:, first:last] = 0.0
        columns[0, last:], columns[1, last:] = -1.0, key_pos[last:] - first


def _own_positions(key_pos: Tensor, rows: slice, cols: slice, start: int) -> tuple[Tensor, slice]:
    """Distances to the block's own positions, and where those are."""
    position = torch.arange(rows.start + start, rows.stop + start, device=key_pos.device, dtype=key_pos.dtype)
    first = max(0, rows.start + start - cols.start)
    last = max(first, min(cols.stop, rows.stop + start) - cols.start)
    return (key_pos[cols][None, first:last] - position[:, None]).abs(), slice(first, last)
