"""The largest weight of each block of a head: the pictures of long texts.

exp is monotone, so the largest score of a block is found first and only that becomes a weight. With -lse as
one more dimension of the queries (against a 1 of the keys) the product is score - lse itself: a head of 8192
x 8192 is one matrix product in strips and one pass over it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from regard.tracing.layers import AnyLayer, LayerTrace

_STRIP = 1 << 21  # weights made at once
_PLAIN_FROM = 1 << 16  # cells: below, every weight is made as the trace makes it, to the last bit


def pooled_max(
    layer: AnyLayer,
    batch: int,
    head: int,
    row_ends: Sequence[int],
    col_ends: Sequence[int],
    lengths: Tensor | None = None,
) -> np.ndarray:
    """The largest weight of each block, NaN where all of it is hidden; times `lengths` of the keys if given.

    `row_ends` and `col_ends` say where blocks begin and end: one more number than there are blocks.
    """
    out = np.full((len(row_ends) - 1, len(col_ends) - 1), np.nan, np.float32)
    n_cell = (row_ends[-1] - row_ends[0]) * (col_ends[-1] - col_ends[0])
    logs = _LogWeights.of(layer, batch, head, lengths) if n_cell >= _PLAIN_FROM else None
    tallest = max(b - a for a, b in pairwise(row_ends))
    at_once = max(1, _STRIP // max(1, (col_ends[-1] - col_ends[0]) * tallest))
    for start in range(0, len(row_ends) - 1, at_once):
        stop = min(len(row_ends) - 1, start + at_once)
        rows = slice(row_ends[start], row_ends[stop])
        reach = layer.key_range(rows)
        # Blocks of columns that none of these rows may see stay NaN and are not computed.
        begin = next((i for i in range(len(col_ends) - 1) if col_ends[i + 1] > reach.start), len(col_ends))
        end = next((i for i in range(len(col_ends) - 1, 0, -1) if col_ends[i - 1] < reach.stop), 0)
        if begin >= end:
            continue
        cols = slice(col_ends[begin], col_ends[end])
        if logs is not None:
            table = logs.tile(rows, cols)
        else:
            table = layer.block(rows, cols, batch, head)[0, 0].float()
            if lengths is not None:
                table = table * lengths[cols]
            table = table.masked_fill(~layer.visible_block(rows, cols, batch, head), -math.inf)
        found = table.cpu().numpy()
        found = np.maximum.reduceat(found, [each - rows.start for each in row_ends[start:stop]], axis=0)
        found = np.maximum.reduceat(found, [each - cols.start for each in col_ends[begin:end]], axis=1)
        hidden = np.isneginf(found)
        out[start:stop, begin:end] = np.where(hidden, np.nan, np.exp(found) if logs is not None else found)
    return out


class _LogWeights:
    """Logarithms of a head's weights, -inf where hidden."""

    def __init__(self, layer: LayerTrace, batch: int, head: int, lengths: Tensor | None) -> None:
        self.layer, self.batch, self.head = layer, batch, head
        kv_head = head * layer.k.shape[1] // layer.n_head
        q, k = layer.q[batch, head].float(), layer.k[batch, kv_head].float()
        lse = layer.lse[batch, head].float()
        # A row that sees nothing is hidden everywhere: any finite number serves in the place of its -inf.
        lse = lse.masked_fill(lse == -math.inf, 0.0)[:, None]
        scale = layer.rule.scale_for(q.shape[1])
        self.q = torch.cat([q * scale, -lse, torch.ones_like(lse)], dim=1)
        ones = torch.ones_like(k[:, :1])
        self.k = torch.cat([k, ones, ones - 1 if lengths is None else lengths[:, None].log()], dim=1)

    @classmethod
    def of(cls, layer: AnyLayer, batch: int, head: int, lengths: Tensor | None) -> _LogWeights | None:
        """None for a layer whose scores are more than a scaled product."""
        if not isinstance(layer, LayerTrace):
            return None
        rule = layer.rule
        if rule.bias is not None or rule.softcap is not None or rule.additive is not None:
            return None
        return cls(layer, batch, head, lengths)

    def tile(self, rows: slice, cols: slice) -> Tensor:
        table = self.q[rows] @ self.k[cols].T
        visible = self.layer.rule.visible
        if visible.everything:
            return table
        first = cols.start
        if visible.causal and visible.window is None and not (visible.by_key or visible.by_pair):
            # Keys up to the first of these queries are seen by all of them.
            first = min(cols.stop, max(cols.start, rows.start + visible.start + 1))
        if first < cols.stop:
            seen = self.layer.visible_block(rows, slice(first, cols.stop), self.batch, self.head)
            table[:, first - cols.start :].masked_fill_(~seen, -math.inf)
        return table
