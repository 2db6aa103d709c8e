"""One sequence of a trace as the page sees it: what there is, tiles of it, the numbers behind a weight."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from regard.errors import ArgumentError
from regard.tracing.layers import AnyLayer
from regard.tracing.pooling import block_ends, pooled_max
from regard.tracing.traces import Trace
from regard.view.images import pictures
from regard.view.labels import head_facts
from regard.view.story import scenes

Json = dict[str, Any]
ModelKind = Literal["encoder", "decoder", "encoder-decoder", "unknown"]
Predicts = Literal["next", "masked", "vector"]

_MOST_TEXELS = 1 << 22  # numbers of one answer


@dataclass(frozen=True, slots=True, eq=False)
class Inside:
    """What the queries and keys of a layer were made from, as `view/machine.py` had it from the model."""

    x: Tensor  # (query, model_dim): what the layer read
    x_key: Tensor  # (key, model_dim): the same, or what the encoder wrote
    q: Tensor  # (head, query, qk_dim): before positions turn it
    k: Tensor  # (kv_head, key, qk_dim)
    last: Tensor | None  # (query, model_dim): what the last norm read
    wrote: Mapping[tuple[int, int], Json] = field(default_factory=dict)  # by head and query


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """A trace's sequence number `batch`, with what the page says about it."""

    trace: Trace
    batch: int = 0
    id: str = "trace"
    title: str = ""
    model_key: str = ""
    text: str = ""
    target: str | None = None
    notices: tuple[str, ...] = ()
    off: tuple[tuple[int, int], ...] = ()
    kind: ModelKind = "unknown"
    predicts: Predicts | None = None
    generated: Json | None = None
    written_last: str = "…"  # what an encoder-decoder writes after its last token
    special_ids: frozenset[int] = frozenset()
    image: str | None = None  # a data URL: what a vision model saw
    insides: Mapping[str, Inside] = field(default_factory=dict)  # by layer: what a page without a model keeps
    _facts: list[Json] = field(default_factory=list)  # filled when first asked for

    def meta(self, precision: str = "as computed") -> Json:
        """What the page must know before it asks for a number."""
        trace = self.trace
        tokens = _line(trace.tokens, self.batch)
        facts = {name: value for name, value in trace.facts.items() if isinstance(value, str | int | bool)}
        return {
            "id": self.id,
            "title": self.title or str(trace.facts.get("name", "trace")),
            "model": facts,
            "modelKey": self.model_key,
            "text": self.text,
            "target": self.target,
            "tokens": list(tokens),
            "written": [*tokens[1:], self.written_last] if tokens else [],
            "source": list(_line(trace.source_tokens, self.batch)),
            "layers": [self._layer_meta(index) for index in range(len(trace.layers))],
            "notices": [*self.notices, *(f"{word}: {said}" for word, said in trace.marks.items())],
            "checks": str(trace.checks),
            "off": [list(head) for head in self.off],
            "kind": self.kind,
            "predicts": self.predicts,
            "generated": self.generated,
            "precision": precision,
            "grid": self._grid(),
        }

    def _grid(self) -> Json | None:
        """Where in its image the positions of a vision model are."""
        grid = self.trace.grid
        if grid is None:
            return None
        return {"rows": grid.rows, "columns": grid.columns, "before": grid.before, "image": self.image}

    def _layer_meta(self, index: int) -> Json:
        layer = self.trace.layers[index]
        return {
            "name": layer.name,
            "kind": layer.kind,
            "mechanism": layer.word,
            "heads": layer.n_head,
            "queries": layer.n_query,
            "keys": layer.n_key,
            "rows": self._side(index, "rows"),
            "cols": self._side(index, "cols"),
            "values": layer.v is not None,
        }

    def _side(self, layer: int, axis: Literal["rows", "cols"]) -> str | None:
        """Whose names an axis has: a row of cross-attention is called by what the model writes next."""
        tokens, source = _line(self.trace.tokens, self.batch), _line(self.trace.source_tokens, self.batch)
        ask = self.trace.query_tokens if axis == "rows" else self.trace.key_tokens
        labels = ask(layer, self.batch)
        if axis == "rows" and self.trace.layers[layer].kind == "cross" and tokens and labels == tokens:
            return "written"
        if source and labels == source:
            return "source"
        return "tokens" if tokens and labels == tokens else None

    def names(self, layer: int) -> tuple[list[str], list[str]]:
        """What the rows and the columns of a layer are called."""
        rows = self.trace.query_tokens(layer, self.batch)
        if self._side(layer, "rows") == "written":
            rows = (*rows[1:], self.written_last)
        return list(rows), list(self.trace.key_tokens(layer, self.batch))

    def tile(
        self,
        layer: int,
        head: int,
        rows: slice,
        cols: slice,
        n_row: int,
        n_col: int,
        *,
        valued: bool = False,
    ) -> np.ndarray:
        """The largest weight of each of `n_row` x `n_col` blocks, NaN where all of a block is hidden.

        `valued` multiplies each weight by the length of the value vector it carries.
        """
        found = self._layer(layer, head)
        first, last = checked_range("rows", rows, found.n_query)
        left, right = checked_range("cols", cols, found.n_key)
        if min(n_row, n_col) < 1 or min(n_row, last - first) * min(n_col, right - left) > _MOST_TEXELS:
            raise ArgumentError(f"a tile has 1 to {_MOST_TEXELS} numbers. Got {n_row} x {n_col}.")
        row_ends, col_ends = block_ends(slice(first, last), n_row), block_ends(slice(left, right), n_col)
        lengths = self._value_lengths(found, head) if valued else None
        return pooled_max(found, self.batch, head, row_ends, col_ends, lengths)

    def small(self, heads: Sequence[tuple[int, int]], n_most: int) -> bytes:
        """Pictures of some heads one after the other: 16-bit floats, at most `n_most` rows and columns."""
        pictures = []
        for layer, head in heads:
            found = self._layer(layer, head)
            rows, cols = slice(0, found.n_query), slice(0, found.n_key)
            pictures.append(self.tile(layer, head, rows, cols, n_most, n_most).astype("<f2").tobytes())
        return b"".join(pictures)

    def parts(self, layer: int, head: int, query: int, key: int) -> Json:
        """The numbers behind one weight."""
        found = self._layer(layer, head)
        parts = found.score_parts(self.batch, head, query, key)
        v = None if found.v is None else found.of_head(found.v, self.batch, head)[0, 0, key].tolist()
        weight = parts.weight if parts.visible else 0.0
        shown: Json = plain({**asdict(parts), "mechanism": found.word, "weight": weight, "v": v})
        return shown

    def pairs(self, layer: int, head: int, count: int = 10) -> list[Json]:
        """The largest weights of a head and where they are."""
        found = self._layer(layer, head)
        best: list[tuple[float, int, int]] = []
        for rows, cols, block in found.strips(self.batch, head):
            flat = block[0].float().flatten()
            top = flat.topk(min(count, flat.shape[0]))
            for value, index in zip(top.values.tolist(), top.indices.tolist(), strict=True):
                row, col = divmod(index, block.shape[2])
                best.append((value, rows.start + row, cols.start + col))
            best = sorted(best, reverse=True)[:count]
        return [{"query": query, "key": key, "weight": weight} for weight, query, key in best if weight > 0]

    def facts(self) -> Json:
        """Measures and labels of every head, and the scenes of the tour."""
        if not self._facts:
            facts = head_facts(self.trace, self.batch, self.special_ids)
            names = [self.names(index) for index in range(len(self.trace.layers))]
            self._facts.append({**facts, "scenes": scenes(self.trace, names, facts, self.batch)})
        return self._facts[0]

    def _layer(self, layer: int, head: int) -> AnyLayer:
        if not 0 <= layer < len(self.trace.layers):
            raise ArgumentError(f"there is no layer {layer}: there are {len(self.trace.layers)}.")
        found = self.trace.layers[layer]
        if not 0 <= head < found.n_head:
            raise ArgumentError(f"there is no head {head}: {found.name} has {found.n_head}.")
        return found

    def _value_lengths(self, layer: AnyLayer, head: int) -> Tensor:
        if layer.v is None:
            raise ArgumentError(f"the values of {layer.name} were not kept: trace with keep_v=True.")
        lengths: Tensor = layer.of_head(layer.v, self.batch, head)[0, 0].float().norm(dim=-1)
        return lengths


def documents_of(trace: Trace, image: Any = None, **about: Any) -> list[Document]:
    """A document for each sequence of a trace; `image` lies under the patches of a vision model."""
    texts = trace.text or ("",) * trace.n_batch
    name = str(trace.facts.get("name", "trace"))
    several = trace.n_batch > 1
    return [
        Document(
            trace,
            batch,
            id=f"trace-{batch}",
            title=f"{name} · sequence {batch}" if several else name,
            **{"text": texts[batch], "image": shown, **about},
        )
        for batch, shown in enumerate(pictures(trace, image))
    ]


def checked_range(name: str, part: slice, size: int) -> tuple[int, int]:
    """The ends of a slice that must lie inside and hold something."""
    if not 0 <= part.start < part.stop <= size:
        raise ArgumentError(f"{name} must lie in 0 to {size}. Got {part.start} to {part.stop}.")
    return part.start, part.stop


def _line(lines: tuple[tuple[str, ...], ...], batch: int) -> tuple[str, ...]:
    return lines[batch] if lines else ()


def plain(value: Any) -> Any:
    """Numbers that JSON has no word for become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return plain(value.tolist()) if isinstance(value, torch.Tensor) else value
