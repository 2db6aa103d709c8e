"""One attention layer read once, in blocks of rows: what `measures.py` is made of.

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
from regard.heads.frames import NEAR, OFFSETS, RECENT, ROW_MEASURES, Cells, Frame, visibility_of
from regard.tracing.layers import AnyLayer

_HIDDEN = -87.0  # exp of it is the smallest float32 with all its digits: 0 to every sum, and no NaN times it
_ENTROPY, _UNIFORMITY, _LARGEST, _FIRST, _SPECIAL = range(5)
_PREVIOUS = ROW_MEASURES.index("previous")  # then same and next, as offsets -1, 0, 1
_DISTANCE, _DUPLICATE, _RETRIEVAL, _STREAMING, _ARGMAX = map(
    ROW_MEASURES.index, ("distance", "duplicate", "retrieval", "streaming", "argmax-4")
)
_BEFORE = _ARGMAX + OFFSETS.index(-1)


@torch.no_grad()
def layer_sums(
    layer: AnyLayer, cells: Cells, batch: int, *, share_ties: bool = False
) -> Float[Tensor, "measure head"]:
    """The sum over counted rows of each measure of each head; O(N) memory, each weight made once.

    A row of equal weights has no argmax; with `share_ties`, which is for the chance level, it falls on all
    of them alike.
    """
    frame, device = cells.frame, layer.tensors[0].device
    dtype = torch.promote_types(layer.tensors[0].dtype, torch.float32)
    kinds, key_pos = frame.columns.T.to(dtype), torch.arange(layer.n_key, device=device, dtype=dtype)
    causal = visibility_of(layer).causal
    values = torch.zeros(len(ROW_MEASURES), layer.n_head, layer.n_query, dtype=dtype, device=device)
    near = torch.zeros(layer.n_head, layer.n_query, NEAR, dtype=dtype, device=device)
    copied = torch.zeros(2, layer.n_head, dtype=torch.float64, device=device)
    fill, blocks = _filler(layer, batch), list(layer.row_blocks(layer.n_head))
    size = max((layer.n_head * (r.stop - r.start) * (c.stop - c.start) for r, c in blocks), default=0)
    buffers = [torch.empty(size, dtype=dtype, device=device) for _ in range(2)]
    with no_autocast(device):
        for rows, cols in blocks:
            shape = (layer.n_head, rows.stop - rows.start, cols.stop - cols.start)
            z, w = (buffer[: math.prod(shape)].view(shape) for buffer in buffers)
            fill(rows, cols, z, w)
            largest = values[_LARGEST, :, rows] = w.amax(-1)
            beside, copies, followed, of_row = cells.of(rows, cols)
            single = w.flatten(1)
            near[:, rows] = single.index_select(1, beside).view(*shape[:2], NEAR)
            copied[0] += single.index_select(1, copies).sum(-1)
            behind = single.index_select(1, followed)
            copied[1] += behind.sum(-1)
            # Like the argmaxes below: where the largest weight is, or in a row of equal weights each alike.
            best = behind if share_ties else (behind >= largest[:, of_row]).to(dtype)
            values[_RETRIEVAL, :, rows] = torch.zeros_like(largest).index_add(1, of_row, best).clamp(max=1.0)
            values[_ENTROPY, :, rows] = -z.mul_(w).sum(-1)
            # From the block's first position: sums over keys that are far from 0 would lose digits.
            before = (frame.start or 0) + rows.start - key_pos[cols]
            of_keys = torch.stack([*kinds[:, cols], torch.ones_like(before), before])
            *summed, whole, back = (of_keys @ w.view(-1, shape[2]).T).view(-1, *shape[:2])
            values[_SPECIAL : _SPECIAL + len(summed) - 1, :, rows] = torch.stack(summed[:-1])
            values[_STREAMING, :, rows] = summed[-1]
            if frame.start is not None:
                within = torch.arange(shape[1], device=device)
                if causal:  # weight on the left only: a row's distances are its place and that of its keys
                    values[_DISTANCE, :, rows] = whole * within + back
                else:
                    distance = (within[:, None] + before).abs()
                    values[_DISTANCE, :, rows] = torch.mul(w, distance, out=z).sum(-1)
    values[_FIRST] = near[..., -1]
    if frame.start is not None:
        values[_ARGMAX:] = near[..., :-1].movedim(-1, 0)
        values[_STREAMING] += values[_ARGMAX : _ARGMAX + RECENT].sum(0)
    totals = _summed(values, frame, share_ties=share_ties)
    totals[_DUPLICATE : _DUPLICATE + 2] = copied
    return totals


def _summed(values: Tensor, frame: Frame, *, share_ties: bool) -> Tensor:
    """The sums over counted rows, from what each row gave."""
    n_visible = frame.n_visible.to(values.dtype)
    values[_UNIFORMITY] = values[_ENTROPY] / n_visible.clamp(min=2).log()
    values[_PREVIOUS : _PREVIOUS + 3] = values[_BEFORE : _BEFORE + 3]
    if not share_ties and frame.start is not None:
        # A row of equal weights has no largest: rounding alone would choose it.
        peaked = values[_LARGEST] * n_visible > 1.001
        values[_ARGMAX:] = (values[_ARGMAX:] >= values[_LARGEST]) & peaked
        values[_RETRIEVAL] *= peaked
    counted = frame.counted.double()
    return torch.stack([of_rows.double() @ rows for of_rows, rows in zip(values, counted, strict=True)])


def _filler(layer: AnyLayer, batch: int) -> Callable[[slice, slice, Tensor, Tensor], None]:
    """What fills in the logarithms (very low for 0) and the weights of some rows and columns of all heads."""
    visible = visibility_of(layer)
    product = layer.log_product(batch) if visible.future_only else None
    if product is None:

        def plainly(rows: slice, cols: slice, z: Tensor, w: Tensor) -> None:
            w.copy_(layer.block(rows, cols, batch)[0])
            torch.clamp(w, min=math.exp(_HIDDEN), out=z).log_()

        return plainly
    q, k = product

    def by_product(rows: slice, cols: slice, z: Tensor, w: Tensor) -> None:
        together = q[:, rows].reshape(k.shape[0], -1, q.shape[2])  # heads that share a key head
        torch.bmm(together, k[:, cols].mT, out=z.view(k.shape[0], -1, z.shape[2]))
        if visible.causal:
            first = max(0, rows.start + visible.start + 1 - cols.start)  # before it, every row sees every key
            seen = visible.tile(rows, slice(cols.start + first, cols.stop), q.device)[0]
            z[:, :, first:].masked_fill_(~seen, _HIDDEN)
        torch.exp(z, out=w)

    return by_product
