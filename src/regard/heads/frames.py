"""Which rows of a layer count for which measure, where they look, and what chance alone would score.

Layers that see alike share one `Frame`. Where nothing but the future is hidden, all of it follows from
positions; any other visibility is read block by block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.attention.visibility import Visibility
from regard.heads.tokens import Copies, TokenFacts, copies
from regard.tracing.layers import AnyLayer

OFFSETS = tuple(range(-4, 5))  # key position minus query position, of which the argmax is counted
NEAR = len(OFFSETS) + 1  # cells read of every row: at the offsets, and the first key

BLOCK = 1 << 20  # weights made at once: near the caches, and enough to hide what each block costs besides
MOST_ROWS = 128
_KEPT_CELLS = 1 << 21  # places of copies kept from one layer to the next

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


@dataclass(frozen=True, slots=True, eq=False)
class UniformLayer(AnyLayer):
    """A head that looks at everything it may see alike: the chance level of a text."""

    visibility: Visibility = field()  # not the property of the base
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

    def block(
        self, rows: slice, cols: slice, batch: int | None = None, head: int | None = None
    ) -> Float[Tensor, "_batch _head rows cols"]:
        seen = self.visibility.tile(rows, cols, self.device)
        seen = seen[(0 if batch is None or seen.shape[0] == 1 else batch), :1][None].float()
        return seen / seen.sum(-1, keepdim=True).clamp(min=1.0)


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """Which rows count for what: the same for all layers that see alike."""

    n_visible: Int[Tensor, "query"]
    counted: Bool[Tensor, "measure query"]  # in the order of ROW_MEASURES
    duplicates: Copies | None
    followed: Copies | None
    columns: Float[Tensor, "key kind"]
    start: int | None  # the position of the first query; None: queries and keys have no common positions


def visibility_of(layer: AnyLayer) -> Visibility:
    """Who may look at whom in a layer. Weights given without it are causal if none is on the future."""
    if layer.visibility is not None:
        return layer.visibility
    values = layer.tensors[0]
    return Visibility(causal=layer.n_query == layer.n_key and not bool(values.triu(1).any()))


def make_frame(
    layer: AnyLayer, visible: Visibility, facts: TokenFacts, batch: int, real_queries: Tensor | None
) -> Frame:
    """The rows that count for each measure: those that have a choice, and the place that is asked for."""
    n_query, n_key, device = layer.n_query, layer.n_key, facts.special.device
    start = visible.start if layer.kind == "self" and n_key >= n_query else None
    look = _by_position if visible.future_only else _by_block
    n_visible, first_seen, at_offset = look(UniformLayer(visible, layer.shape, device), start, batch)
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
    return Frame(n_visible, counted, found, followed, facts.columns, start)


_Looked = tuple[Tensor, Tensor, dict[int, Tensor]]  # how many keys, whether the first, whether at each offset


def _by_position(layer: UniformLayer, start: int | None, batch: int) -> _Looked:
    """What each row sees where only the future can be hidden."""
    visible, n_key = layer.visibility, layer.n_key
    position = torch.arange(layer.n_query, device=layer.device) + visible.start
    n_visible = (position + 1).clamp(max=n_key) if visible.causal else torch.full_like(position, n_key)
    nowhere = torch.zeros_like(n_visible, dtype=torch.bool)
    at_offset = dict.fromkeys(OFFSETS, nowhere)
    if start is not None:
        for offset in OFFSETS:
            at_offset[offset] = (position + offset >= 0) & (position + offset < n_visible)
    return n_visible, n_visible > 0, at_offset


def _by_block(layer: UniformLayer, start: int | None, batch: int) -> _Looked:
    """What each row sees, read from the visibility itself."""
    n_visible = torch.zeros(layer.n_query, dtype=torch.long, device=layer.device)
    first_seen = torch.zeros_like(n_visible, dtype=torch.bool)
    at_offset = {offset: torch.zeros_like(first_seen) for offset in OFFSETS}
    for rows, cols in row_blocks(layer, 1):
        seen = layer.visible_block(rows, cols, batch, 0)
        n_visible[rows] = seen.sum(-1)
        if cols.start == 0 and seen.shape[1]:
            first_seen[rows] = seen[:, 0]
        if start is not None:
            for offset in OFFSETS:
                part, where = diagonal(seen[None], rows, cols, start + offset)
                at_offset[offset][rows.start + where.start : rows.start + where.stop] = part[0]
    return n_visible, first_seen, at_offset


def chance_by_position(frame: Frame) -> Float[Tensor, "measure"]:
    """The sums over counted rows of a head that looks everywhere alike, where only the future can be hidden.

    Row i puts 1 / n on each of the first n keys: every measure is a count of keys, over n.
    """
    n = frame.n_visible.double()
    some = n.clamp(min=1)
    values = (1 / some).repeat(len(ROW_MEASURES), 1)  # single cells, and the largest weight
    at = dict(zip(ROW_MEASURES, values, strict=True))
    at["entropy"].copy_(some.log())
    at["uniformity"].fill_(1.0)
    before = torch.nn.functional.pad(frame.columns.double().cumsum(0), (0, 0, 1, 0))
    for name, column in zip(("special", "punctuation", "rare"), before.T, strict=True):
        at[name].copy_(column[frame.n_visible] / some)
    if frame.start is not None:
        position = torch.arange(n.shape[0], device=n.device, dtype=n.dtype) + frame.start
        left = torch.minimum(position + 1, n)  # keys up to oneself; those to the right are n - left
        to_left = left * position - left * (left - 1) / 2
        to_right = (n * (n - 1) - left * (left - 1)) / 2 - (n - left) * position
        at["distance"].copy_((to_left + to_right) / some)
    for name, found in (("duplicate", frame.duplicates), ("induction", frame.followed)):
        if found is not None:
            at[name].copy_(found.count / some)
    return (values * frame.counted).sum(-1)


def row_blocks(layer: AnyLayer, n_head: int) -> Iterator[tuple[slice, slice]]:
    """Slices of queries and the keys they can see, of about BLOCK weights."""
    first = 0
    while first < layer.n_query:
        # More rows waste more on the future; where there is one head, each block's fixed cost weighs more.
        step = min(MOST_ROWS if n_head > 1 else 4 * MOST_ROWS, layer.n_query - first)
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


class Cells:
    """The single cells that are read of each block, as all layers of one frame ask for the same.

    First NEAR of each row, then copies of the row's token, then what followed them. Kept up to a bound, so
    that a text of one word again and again takes no more memory than another.
    """

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.kept: dict[tuple[int, int, int, int], tuple[Tensor, int, int]] = {}
        self.n_kept = 0

    def of(self, rows: slice, cols: slice) -> tuple[Int[Tensor, "cell"], int, int]:
        """Places in a block (rows x cols, flat), and how many of them are near cells and copies."""
        key = (rows.start, rows.stop, cols.start, cols.stop)
        if key in self.kept:
            return self.kept[key]
        made = self._made(rows, cols)
        if self.n_kept + made[0].shape[0] <= _KEPT_CELLS:
            self.kept[key] = made
            self.n_kept += made[0].shape[0]
        return made

    def _made(self, rows: slice, cols: slice) -> tuple[Tensor, int, int]:
        frame, device, n_col = self.frame, self.frame.n_visible.device, cols.stop - cols.start
        row = torch.arange(rows.stop - rows.start, device=device)
        # Rows that have no such key read another, and do not count.
        position = row + rows.start + (frame.start or 0) - cols.start
        at = (position[:, None] + torch.tensor(OFFSETS, device=device)).clamp(0, n_col - 1)
        at = torch.cat([at, torch.zeros_like(at[:, :1])], dim=-1)
        near = (row[:, None] * n_col + at).flatten()
        parts = [near]
        for found, name in ((frame.duplicates, "duplicate"), (frame.followed, "induction")):
            if found is None:
                parts.append(near[:0])
                continue
            of_row, key = found.pairs(rows)
            place = key - cols.start
            wanted = frame.counted[ROW_MEASURES.index(name)][rows][of_row] & (place >= 0) & (place < n_col)
            parts.append((of_row * n_col + place)[wanted])
        return torch.cat(parts).int(), parts[0].shape[0], parts[1].shape[0]
