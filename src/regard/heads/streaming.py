"""One attention layer read once, in blocks of rows of all heads: what `measures.py` is made of.

A block's weights are exp(z) with z = score - lse. One product gives z (queries carry -lse as one more
dimension, against a 1 of the keys), and a second, narrow one sums the weights over kinds of keys. What looks
at fixed distances, at copies or at the first key reads single cells. Buffers are made once for each layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.heads.tokens import Copies, TokenFacts, copies
from regard.scores import no_autocast
from regard.trace_layers import AnyLayer, DenseLayerTrace, LayerTrace, LinearLayerTrace
from regard.visibility import Visibility

OFFSETS = tuple(range(-4, 5))  # key position minus query position, of which the argmax is counted

BLOCK = 1 << 20  # weights of all heads at once: near the caches, and large enough for the products
_MOST_ROWS = 128
_HIDDEN = -87.0  # exp of it is the smallest float32 with all its digits: 0 to every sum, and no NaN times it

ROW_MEASURES = (
    "entropy",
    "uniformity",
    "largest",
    "first",
    "special",
    "punctuation",
    "rare",
    "previous",
    "same",
    "next",
    "distance",
    "duplicate",
    "induction",
    *(f"argmax{offset:+d}" for offset in OFFSETS),
)
_ENTROPY, _UNIFORMITY, _LARGEST, _FIRST, _SPECIAL = range(5)
_PREVIOUS = ROW_MEASURES.index("previous")  # then same and next, as offsets -1, 0, 1
_DISTANCE, _DUPLICATE, _ARGMAX = (ROW_MEASURES.index(name) for name in ("distance", "duplicate", "argmax-4"))
_BEFORE = OFFSETS.index(-1)


@dataclass(frozen=True, slots=True, eq=False)
class UniformLayer(AnyLayer):
    """A head that looks at everything it may see alike: the chance level of a text."""

    visibility: Visibility
    sizes: tuple[int, int, int, int]
    device: torch.device
    name: str = "uniform"
    kind: str = "self"  # type: ignore[assignment]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.sizes

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (torch.empty(0, device=self.device),)

    def key_range(self, rows: slice) -> slice:
        return self.visibility.key_range(rows, self.n_key)

    def block(
        self, rows: slice, cols: slice, batch: int | None = None, head: int | None = None
    ) -> Float[Tensor, "_batch _head rows cols"]:
        seen = self.visibility.tile(rows, cols, self.device)
        seen = seen[(0 if batch is None or seen.shape[0] == 1 else batch), :1][None].float()
        return seen / seen.sum(-1, keepdim=True).clamp(min=1.0)

    def visible_block(self, rows: slice, cols: slice, batch: int, head: int) -> Bool[Tensor, "rows cols"]:
        seen = self.visibility.tile(rows, cols, self.device)
        return seen[0 if seen.shape[0] == 1 else batch, 0]


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """Which rows count for what: the same for all layers that see alike."""

    n_visible: Int[Tensor, "query"]
    counted: Bool[Tensor, "measure query"]  # in the order of ROW_MEASURES
    duplicates: Copies | None
    columns: Float[Tensor, "key kind"]
    start: int | None  # the position of the first query; None: queries and keys have no common positions


def visibility_of(layer: AnyLayer) -> Visibility:
    """Who may look at whom in a layer. Weights given without it are causal if none is on the future."""
    if isinstance(layer, LayerTrace):
        return layer.rule.visible
    if isinstance(layer, LinearLayerTrace):
        return Visibility(
            causal=layer.causal, start=layer.n_key - layer.n_query if layer.causal else 0, keys=layer.keys
        )
    if isinstance(layer, DenseLayerTrace) and layer.visibility is None:
        causal = layer.n_query == layer.n_key and not bool(layer.values.triu(1).any())
        return Visibility(causal=causal)
    inner = getattr(layer, "visibility", None)
    return Visibility() if inner is None else inner


def make_frame(
    layer: AnyLayer, visible: Visibility, facts: TokenFacts, batch: int, real_queries: Tensor | None
) -> Frame:
    """The rows that count for each measure: those that have a choice, and the place that is asked for."""
    n_query, n_key, device = layer.n_query, layer.n_key, facts.special.device
    start = visible.start if layer.kind == "self" and n_key >= n_query else None
    uniform = UniformLayer(visible, layer.shape, device)
    n_visible = torch.zeros(n_query, dtype=torch.long, device=device)
    first_seen = torch.zeros(n_query, dtype=torch.bool, device=device)
    at_offset = {offset: torch.zeros_like(first_seen) for offset in OFFSETS}
    for rows, cols in row_blocks(uniform, 1):
        seen = uniform.visible_block(rows, cols, batch, 0)
        n_visible[rows] = seen.sum(-1)
        if cols.start == 0 and seen.shape[1]:
            first_seen[rows] = seen[:, 0]
        if start is not None:
            for offset in OFFSETS:
                part, where = diagonal(seen[None], rows, cols, start + offset)
                at_offset[offset][rows.start + where.start : rows.start + where.stop] = part[0]
    choice = n_visible >= 2
    if real_queries is not None:
        choice = choice & real_queries
    found = copies(facts, 0) if facts.ids is not None and start == 0 and n_query == n_key else None
    followed = copies(facts, 1) if found is not None else None
    none = torch.zeros_like(choice)
    rule = {
        "first": choice & first_seen & (torch.arange(n_query, device=device) + (start or 0) > 0),
        "previous": choice & at_offset[-1],
        "next": choice & at_offset[1],
        "same": choice & at_offset[0],
        "distance": choice if start is not None else none,
        "duplicate": none if found is None else choice & (found.count > 0),
        "induction": none if followed is None else choice & (followed.count > 0),
        **{f"argmax{offset:+d}": choice & at_offset[offset] for offset in OFFSETS},
    }
    counted = torch.stack([rule.get(name, choice) for name in ROW_MEASURES])
    return Frame(n_visible, counted, found, facts.columns, start)


def row_blocks(layer: AnyLayer, n_head: int) -> Iterator[tuple[slice, slice]]:
    """Slices of queries and the keys they can see, of about BLOCK weights."""
    first = 0
    while first < layer.n_query:
        # More rows waste more on the future; where there is one head, each block's fixed cost weighs more.
        step = min(_MOST_ROWS if n_head > 1 else 4 * _MOST_ROWS, layer.n_query - first)
        cols = layer.key_range(slice(first, first + step))
        while step > 1 and n_head * step * (cols.stop - cols.start) > BLOCK:
            step = max(1, min(step - 1, BLOCK // max(1, n_head * (cols.stop - cols.start))))
            cols = layer.key_range(slice(first, first + step))
        if cols.stop == cols.start and layer.n_key:  # sees nothing: one key, of weight 0
            cols = slice(0, 1)
        yield slice(first, first + step), cols
        first += step


def diagonal(block: Tensor, rows: slice, cols: slice, shift: int) -> tuple[Tensor, slice]:
    """The cells of a block (head, rows, cols) with key = query + shift, and which of its rows have one."""
    offset = rows.start + shift - cols.start  # key of the block's first row, counted from its first column
    values = block.diagonal(offset, dim1=-2, dim2=-1)
    first = max(0, -offset)
    return values, slice(first, first + values.shape[-1])


class Scratch:
    """Buffers that all layers share: fresh ones would have to be mapped anew for each."""

    def __init__(self) -> None:
        self.held: tuple[Tensor, Tensor] | None = None

    def buffers(self, size: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
        """Two of that size, the same as before where they fit; what is never touched costs nothing."""
        held = self.held
        if held is None or held[0].shape[0] < size or held[0].dtype != dtype or held[0].device != device:
            held = (
                torch.empty(size, dtype=dtype, device=device),
                torch.empty(size, dtype=dtype, device=device),
            )
            self.held = held
        return held


def layer_sums(
    layer: AnyLayer, frame: Frame, batch: int, *, uniform: bool = False, scratch: Scratch | None = None
) -> Float[Tensor, "measure head"]:
    """The sum over counted rows of each measure of each head; O(N) memory, each weight made once.

    With `uniform` the layer is the chance level: an argmax among equals falls on each alike.
    """
    n_head, device = (1 if uniform else layer.n_head), frame.columns.device
    n_kind = frame.columns.shape[1]
    totals = torch.zeros(len(ROW_MEASURES), n_head, dtype=torch.float64, device=device)
    fill = _filler(layer, batch, n_head)
    blocks = list(row_blocks(layer, n_head))
    size = max((n_head * (r.stop - r.start) * (c.stop - c.start) for r, c in blocks), default=0)
    dtype = torch.promote_types(layer.tensors[0].dtype, torch.float32)
    z_buffer, w_buffer = (scratch or Scratch()).buffers(size, dtype, device)
    columns = torch.zeros(n_kind + 2, layer.n_key, dtype=dtype, device=device)
    columns[:n_kind] = frame.columns.T
    key_pos = torch.arange(layer.n_key, device=device, dtype=dtype)
    n_visible = frame.n_visible.to(dtype)
    log_visible = n_visible.clamp(min=2).log()
    beside = torch.arange(layer.n_query, device=device)[:, None] + torch.tensor(OFFSETS, device=device)
    counted = frame.counted.to(dtype)
    for rows, cols in blocks:
        n_row, n_col = rows.stop - rows.start, cols.stop - cols.start
        shape = (n_head, n_row, n_col)
        z, w = (buffer[: math.prod(shape)].view(shape) for buffer in (z_buffer, w_buffer))
        values = torch.zeros(len(ROW_MEASURES), n_head, n_row, dtype=dtype, device=device)
        fill(rows, cols, z, w)
        top = w.amax(-1)
        if frame.start is not None:
            _distance_columns(columns[n_kind:], key_pos, rows, frame.start)
        summed = (columns[:, cols] @ w.flatten(0, 1).T).unflatten(1, (n_head, n_row))
        values[_ENTROPY] = -torch.mul(z, w, out=z).sum(-1)
        values[_UNIFORMITY] = values[_ENTROPY] / log_visible[rows]
        values[_LARGEST] = top
        if cols.start == 0:
            values[_FIRST] = w[:, :, 0]
        if frame.start is not None:
            # Rows that have no such key read another, and do not count.
            at = (beside[rows] + (frame.start - cols.start)).clamp(0, n_col - 1).expand(n_head, -1, -1)
            near = w.gather(2, at).permute(2, 0, 1)
            values[_PREVIOUS : _PREVIOUS + 3] = near[_BEFORE : _BEFORE + 3]
            if uniform:
                values[_ARGMAX:] = near
            else:
                # A row of equal weights has no largest: rounding alone would choose it.
                peaked = values[_LARGEST] * n_visible[rows] > 1.001
                values[_ARGMAX:] = (near >= top) & peaked
        values[_SPECIAL : _SPECIAL + n_kind] = summed[:n_kind]
        if frame.start is not None:
            values[_DISTANCE] = _distance(summed[n_kind:], w, rows, cols, frame.start, key_pos)
        if frame.duplicates is not None:
            _add_copies(values[_DUPLICATE : _DUPLICATE + 2], w, frame.duplicates, rows, cols)
        totals += (values * counted[:, None, rows]).sum(-1)
    return totals


def _add_copies(values: Tensor, w: Tensor, found: Copies, rows: slice, cols: slice) -> None:
    """Put the weights on earlier copies of a row's token in `values[0]`, on what followed in `values[1]`."""
    row, key = found.pairs(rows)
    if not row.shape[0]:
        return
    flat, n_col = w.flatten(1), cols.stop - cols.start
    end = found.count[rows].cumsum(0)  # pairs are in the order of rows: sums over a row are differences
    at = key - cols.start
    inside = (at >= 0) & (at < n_col)
    # What followed the copy right before is the token itself.
    followed = (at + 1 >= 0) & (at + 1 < n_col) & (key + 1 < row + rows.start)
    cell = row * n_col + at
    both = torch.cat([cell.where(inside, 0), (cell + 1).where(followed, 0)])
    picked = flat.index_select(1, both).unflatten(1, (2, -1)) * torch.stack([inside, followed])
    total = picked.double().cumsum(2).index_select(2, (end - 1).clamp(min=0)).movedim(1, 0)
    total = total * (end > 0)  # rows before the first pair
    values[:, :, 0] = total[..., 0]
    values[:, :, 1:] = total.diff(dim=-1)


def _filler(layer: AnyLayer, batch: int, n_head: int) -> Callable[[slice, slice, Tensor, Tensor], None]:
    """A function that fills two buffers with a block: logarithms (very low for 0), and weights."""
    if isinstance(layer, LayerTrace) and _is_plain(layer):
        q, k = layer.q[batch], layer.k[batch]
        dtype = torch.promote_types(q.dtype, torch.float32)
        lse = layer.lse[batch].to(dtype)
        q = torch.cat([q.to(dtype) * layer.rule.scale_for(q.shape[2]), -lse[..., None]], dim=-1)
        k = torch.cat([k.to(dtype), k.new_ones(*k.shape[:2], 1, dtype=dtype)], dim=-1).mT
        n_kv_head, causal, start = k.shape[0], layer.rule.visible.causal, layer.rule.visible.start

        def product(rows: slice, cols: slice, z: Tensor, w: Tensor) -> None:
            grouped = q[:, rows].reshape(n_kv_head, -1, q.shape[2])
            with no_autocast(q.device):
                torch.bmm(grouped, k[:, :, cols], out=z.view(n_kv_head, -1, z.shape[2]))
            if not causal:
                torch.exp(z, out=w)
                return
            first = max(0, rows.start + start + 1 - cols.start)  # before it, every row sees every key
            future = torch.ones(z.shape[1], z.shape[2] - first, dtype=torch.bool, device=q.device)
            future = future.triu(rows.start + start + 1 - cols.start - first)
            z[:, :, first:].masked_fill_(future, _HIDDEN)
            torch.exp(z, out=w)

        return product
    if isinstance(layer, UniformLayer) and _hides_future_only(layer.visibility):
        visible = layer.visibility

        def uniform(rows: slice, cols: slice, z: Tensor, w: Tensor) -> None:
            stop = torch.arange(rows.start, rows.stop, device=z.device) + visible.start + 1
            n_seen = stop.clamp(max=layer.n_key) if visible.causal else torch.full_like(stop, layer.n_key)
            z.copy_(-n_seen.to(z.dtype).log()[:, None].expand_as(z))
            torch.exp(z, out=w)
            if visible.causal:
                future = torch.arange(cols.start, cols.stop, device=z.device) >= stop[:, None]
                w.masked_fill_(future, 0.0)

        return uniform

    def general(rows: slice, cols: slice, z: Tensor, w: Tensor) -> None:
        w.copy_(layer.block(rows, cols, batch)[0, :n_head])
        torch.clamp(w, min=math.exp(_HIDDEN), out=z).log_()

    return general


def _is_plain(layer: LayerTrace) -> bool:
    """Whether scores are products alone, with nothing hidden but the future."""
    rule = layer.rule
    products = rule.bias is None and rule.softcap is None and rule.additive is None
    return products and _hides_future_only(rule.visible)


def _hides_future_only(visible: Visibility) -> bool:
    return visible.window is None and not visible.by_key and not visible.by_pair


def _distance_columns(columns: Tensor, key_pos: Tensor, rows: slice, start: int) -> None:
    """Columns whose sums give the distance of keys left and right of a block's own positions.

    With f the block's first position, |i - j| is (i - f) + (f - j) to the left and (f - i) + (j - f) to the
    right: a factor of i - f, and a number. Between, where both occur, the columns are 0.
    """
    first, last = rows.start + start, rows.stop + start
    columns[0, :first], columns[1, :first] = 1.0, first - key_pos[:first]
    columns[:, first:last] = 0.0
    columns[0, last:], columns[1, last:] = -1.0, key_pos[last:] - first


def _distance(summed: Tensor, w: Tensor, rows: slice, cols: slice, start: int, key_pos: Tensor) -> Tensor:
    """The mean distance each row looks over."""
    n_row = rows.stop - rows.start
    within = torch.arange(n_row, device=w.device, dtype=w.dtype)
    first = max(0, rows.start + start - cols.start)
    last = max(first, min(cols.stop, rows.stop + start) - cols.start)
    between = (key_pos[cols][None, first:last] - (rows.start + start + within)[:, None]).abs()
    found: Tensor = summed[0] * within + summed[1] + (w[..., first:last] * between).sum(-1)
    return found
