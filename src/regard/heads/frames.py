"""Which rows of a layer count for which measure, where they look, and what chance alone would score.

Layers that see alike share one `Frame`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.attention.visibility import Visibility
from regard.heads.tokens import Copies, TokenFacts, copies
from regard.tracing.layers import AnyLayer, Kind

OFFSETS = tuple(range(-4, 5))  # key position minus query position, of which the argmax is counted
NEAR = len(OFFSETS) + 1  # cells read of every row: at the offsets, and the first key
SINKS, RECENT = 4, 5  # first and last positions that a cache for streaming keeps: offsets -4 to 0

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
    "retrieval",
    "streaming",
    *(f"argmax{offset:+d}" for offset in OFFSETS),
)


@dataclass(frozen=True, slots=True, eq=False)
class UniformLayer(AnyLayer):
    """One head that looks at everything it may see alike: the chance level of a text."""

    visibility: Visibility = field()  # not the property of the base
    sizes: tuple[int, int, int]  # batch, query, key
    device: torch.device
    name: str = "uniform"
    kind: Kind = "self"

    @property
    def shape(self) -> tuple[int, int, int, int]:
        batch, query, key = self.sizes
        return batch, 1, query, key

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (torch.empty(0, device=self.device),)

    def block(
        self, rows: slice, cols: slice, batch: int | None = None, head: int | None = None
    ) -> Float[Tensor, "_batch _head rows cols"]:
        seen = self.visible(rows, cols, batch or 0, 0)[None, None].float()
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
    first: int  # the first key that a query sees: padding may stand before it


def visibility_of(layer: AnyLayer) -> Visibility:
    """Who may look at whom in a layer. Weights given without it are causal if none is on the future."""
    if layer.visibility is not None:
        return layer.visibility
    values = layer.tensors[0]
    return Visibility(causal=layer.n_query == layer.n_key and not bool(values.triu(1).any()))


def make_frame(
    layer: UniformLayer,
    facts: TokenFacts,
    batch: int,
    real_queries: Bool[Tensor, "query"] | None,
    asked: Bool[Tensor, "query"] | None = None,
) -> Frame:
    """The rows that count for each measure: those that have a choice, and the place that is asked for."""
    n_query, n_key = layer.n_query, layer.n_key
    start = layer.visibility.start if layer.kind == "self" and n_key >= n_query else None
    n_visible = torch.zeros(n_query, dtype=torch.long, device=layer.device)
    real = torch.ones_like(n_visible, dtype=torch.bool) if real_queries is None else real_queries
    reached = torch.zeros(n_key, dtype=torch.bool, device=layer.device)
    at_offset = {offset: torch.zeros_like(real) for offset in OFFSETS}
    for rows, cols in layer.row_blocks(1):
        seen = layer.visible(rows, cols, batch, 0)
        n_visible[rows] = seen.sum(-1)
        reached[cols] |= seen[real[rows]].any(0)
        for offset in OFFSETS if start is not None else ():
            part, where = diagonal(seen[None], rows, cols, (start or 0) + offset)
            at_offset[offset][rows.start + where.start : rows.start + where.stop] = part[0]
    choice = (n_visible >= 2) & real
    asked = choice if asked is None else asked.to(layer.device)
    first = int(reached.int().argmax()) if n_key else 0
    sees_first = layer.visible(slice(0, n_query), slice(first, first + 1), batch, 0).any(-1)
    after_first = torch.arange(n_query, device=layer.device) + (start or 0) > (0 if start is None else first)
    has_copies = facts.ids is not None and start == 0 and n_query == n_key
    duplicates, followed = (copies(facts, shift) if has_copies else None for shift in (0, 1))
    none = torch.zeros_like(choice)
    streams = layer.visibility.causal and start is not None
    rule = {
        "first": choice & sees_first & after_first,
        "previous": choice & at_offset[-1],
        "next": choice & at_offset[1],
        "same": choice & at_offset[0],
        "distance": choice if start is not None else none,
        "duplicate": none if duplicates is None else choice & (duplicates.count > 0),
        "induction": none if followed is None else choice & (followed.count > 0),
        "retrieval": none if followed is None else choice & (followed.count > 0) & asked,
        # Where these positions are no more than half of what may be seen.
        "streaming": choice & (n_visible >= 2 * (SINKS + RECENT)) if streams else none,
        **{f"argmax{offset:+d}": choice & at_offset[offset] for offset in OFFSETS},
    }
    counted = torch.stack([rule.get(name, choice) for name in ROW_MEASURES])
    sinks = torch.zeros(n_key, 1, device=layer.device)
    sinks[first : first + SINKS] = 1.0
    columns = torch.cat([facts.columns, sinks], -1)
    return Frame(n_visible, counted, duplicates, followed, columns, start, first)


def diagonal(block: Tensor, rows: slice, cols: slice, shift: int) -> tuple[Tensor, slice]:
    """The cells of a block (head, rows, cols) with key = query + shift, and which of its rows have one."""
    offset = rows.start + shift - cols.start  # key of the block's first row, counted from its first column
    values = block.diagonal(offset, dim1=-2, dim2=-1)
    first = max(0, -offset)
    return values, slice(first, first + values.shape[-1])


class Cells:
    """The single cells that are read of each block, as all layers of one frame ask for the same.

    Kept up to a bound, so that a text of one word again and again takes no more memory than another.
    """

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.kept: dict[tuple[int, int, int, int], tuple[Tensor, Tensor, Tensor, Tensor]] = {}
        self.n_kept = 0

    def of(self, rows: slice, cols: slice) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Places in a block (rows x cols, flat): NEAR of each row, copies of the rows' tokens, what followed
        them; and the rows of these."""
        key = (rows.start, rows.stop, cols.start, cols.stop)
        if key in self.kept:
            return self.kept[key]
        made = self._made(rows, cols)
        size = sum(len(places) for places in made)
        if self.n_kept + size <= _KEPT_CELLS:
            self.kept[key] = made
            self.n_kept += size
        return made

    def _made(self, rows: slice, cols: slice) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        frame, device, n_col = self.frame, self.frame.n_visible.device, cols.stop - cols.start
        row = torch.arange(rows.stop - rows.start, device=device)
        # Rows that have no such key read another, and do not count.
        position = row + rows.start + (frame.start or 0) - cols.start
        at = (position[:, None] + torch.tensor(OFFSETS, device=device)).clamp(0, n_col - 1)
        first = min(max(0, frame.first - cols.start), n_col - 1)
        at = torch.cat([at, torch.full_like(at[:, :1], first)], dim=-1)
        near = (row[:, None] * n_col + at).flatten()
        places = [near]
        of_row = near[:0]
        for copied, name in ((frame.duplicates, "duplicate"), (frame.followed, "induction")):
            if copied is None:
                places.append(near[:0])
                continue
            of_row, key = copied.pairs(rows)
            place = key - cols.start
            wanted = frame.counted[ROW_MEASURES.index(name)][rows][of_row] & (place >= 0) & (place < n_col)
            of_row = of_row[wanted]
            places.append(of_row * n_col + place[wanted])
        return places[0], places[1], places[2], of_row
