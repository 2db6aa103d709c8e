"""A trace: every attention weight of a model on some text, in O(N) memory.

trace = regard.trace(model, "some text")
trace.weights(layer=3, head=0)                       # one matrix; head=None: of all heads
trace.tile(3, 0, slice(0, 256), slice(0, 256))       # a part of it, for the price of the part
trace.pooled(3, 0, 64, 64)                           # an overview of a long input
trace.save("some.trace"); Trace.load("some.trace")   # memory-mapped
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from regard.attention.data import Data
from regard.attention.shapes import check_rank, whole_index
from regard.drawing.html import picture, tag
from regard.drawing.tables import dataframe
from regard.errors import ArgumentError, ShapeError
from regard.layers.layer_id import LayerId, layer_labels
from regard.tracing import store
from regard.tracing.layers import AnyLayer, DenseLayerTrace, Matrices, PerKey, Tile
from regard.tracing.pooling import Pooling, block_ends, pooled_max

Plain = str | int | float | bool | None
Which = int | str  # a layer, by index or name

_MARKS = (
    "unverified",
    "not_seen",
    "changed",
    "one_query",
    "also_used",
    "layout",
    "as_returned",
    "other_softmax",
)  # facts that say what the trace is not
_SMALL = 40  # blocks of a small picture
_SMALL_COST = 1 << 28  # weights read for them: about a second's work


@dataclass(frozen=True, slots=True, repr=False)
class LayerCheck(Data):
    """What the check of a traced layer found, on a few of its rows.

    Attributes:
        name: The layer.
        output: The largest difference of the recovered output from the model's own; None: not seen.
        output_allowed: How large rounding alone may make it.
        row_sum: The largest distance of a row's sum from 1.
        row_sum_allowed: How large rounding alone may make that.
        hidden: The largest weight of a row on the future and on padding, where there must be none. None for
            a foreign model, whose masks are its own affair: the trace shows what it looks at.
    """

    name: str
    output: float | None
    output_allowed: float
    row_sum: float
    row_sum_allowed: float
    hidden: float | None

    @property
    def passed(self) -> bool:
        """Whether rounding explains all differences. NaN does not pass."""
        output_right = self.output is None or self.output <= self.output_allowed
        nothing_hidden = self.hidden is None or self.hidden <= self.row_sum_allowed
        return output_right and self.row_sum <= self.row_sum_allowed and nothing_hidden


@dataclass(frozen=True, slots=True, repr=False)
class TraceChecks(Data):
    """What the checks of all layers found.

    Attributes:
        layers: One check for each layer.
    """

    layers: tuple[LayerCheck, ...] = ()
    word: ClassVar[str] = "Checks"  # as files have it

    def _largest(self, what: str) -> float | None:
        """The largest value of all layers, NaN where one is; None where none is known."""
        values = [value for layer in self.layers if (value := getattr(layer, what)) is not None]
        return float(torch.tensor(values, dtype=torch.float64).max()) if values else None

    @property
    def output(self) -> float | None:
        """The largest difference of a recovered output from the model's own."""
        return self._largest("output")

    @property
    def row_sum(self) -> float | None:
        """The largest distance of a row's sum from 1."""
        return self._largest("row_sum")

    @property
    def hidden(self) -> float | None:
        """The largest weight of a row on the future and on padding."""
        return self._largest("hidden")

    @property
    def passed(self) -> bool:
        """Whether every layer passed."""
        return all(layer.passed for layer in self.layers)

    def __repr__(self) -> str:
        n_failed = sum(not layer.passed for layer in self.layers)
        return f"Checks({len(self.layers)} layers, {n_failed} failed)"

    def __str__(self) -> str:
        if not self.layers:
            return "not checked"
        labels = layer_labels([LayerId.parse(layer.name) for layer in self.layers])
        failed = [name for name, layer in zip(labels, self.layers, strict=True) if not layer.passed]
        output = "not compared" if self.output is None else f"off by {self.output:.1e} at most"
        verdict = "passed" if not failed else f"FAILED in {', '.join(failed)}"
        hidden = "" if self.hidden is None else f", weight on hidden tokens {self.hidden:.1e}"
        return f"{verdict}: outputs {output}, row sums by {self.row_sum:.1e}{hidden}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Grid(Data):
    """How the positions of a vision model lie in its image: patches row by row, special tokens around them.

    >>> Grid(2, 3, before=1).names
    ('CLS', '0,0', '0,1', '0,2', '1,0', '1,1', '1,2')
    """

    rows: int
    columns: int
    before: int = 0  # special tokens that come first, such as CLS
    after: int = 0  # and those that come last
    # What the model was given, cropped and resized as its processor does: the grid divides this picture.
    image: UInt8[Tensor, "batch height width channel"] | None = None

    def __post_init__(self) -> None:
        if min(self.rows, self.columns) < 1 or min(self.before, self.after) < 0:
            raise ArgumentError(f"a grid has at least one row and one column. Got {self!r}.")

    @property
    def names(self) -> tuple[str, ...]:
        """A name for every position: CLS for a first special token, "row,column" for a patch."""
        special = [f"special {index}" for index in range(self.before + self.after)]
        if self.before:
            special[0] = "CLS"
        patches = [f"{row},{column}" for row in range(self.rows) for column in range(self.columns)]
        return (*special[: self.before], *patches, *special[self.before :])


@dataclass(frozen=True, slots=True, eq=False)
class Timeline(Data):
    """How the positions that a speech model's encoder reads lie in time.

    Attributes:
        seconds: How long one position lasts.
        n_position: How many positions the encoder has.
        n_sound: How many of them the sound fills; the others are silence that was added.
        spectrogram: What the model was given, ``(batch, mel, frame)``, over all of its positions.

    >>> Timeline(0.02, 3, 2).names
    ('0.00 s', '0.02 s', '0.04 s')
    """

    seconds: float
    n_position: int
    n_sound: int
    spectrogram: Float[Tensor, "batch mel frame"] | None = None

    def __post_init__(self) -> None:
        if self.seconds <= 0 or not 0 < self.n_sound <= self.n_position:
            raise ArgumentError(f"a timeline has positions that last, filled by a sound. Got {self!r}.")

    @property
    def names(self) -> tuple[str, ...]:
        """The time at which each position begins."""
        return tuple(f"{index * self.seconds:.2f} s" for index in range(self.n_position))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Trace(Data):
    """Tokens and every attention layer of one forward pass, any weight of which can be asked for.

    `layer` is an index or a name. Indices count from 0, and from the end where negative.

    Attributes:
        layers: The attention layers, in the order they ran.
        tokens: What the queries are, one line for each sequence of the batch.
        source_tokens: What the encoder of an encoder-decoder read.
        ids: The token ids.
        key_mask: False where a token is padding; None: no token is.
        text: The texts.
        facts: What is known about the model and the run.
        checks: What the check of every layer found.
        grid: For a vision model, where in the image its positions are.
        timeline: For a speech model, when the positions of its encoder are.
    """

    layers: tuple[AnyLayer, ...]
    tokens: tuple[tuple[str, ...], ...] = ()
    source_tokens: tuple[tuple[str, ...], ...] = ()
    ids: Int[Tensor, "batch position"] | None = None
    key_mask: Bool[Tensor, "batch position"] | None = None
    text: tuple[str, ...] | None = None
    facts: Mapping[str, Plain] = field(default_factory=dict)
    checks: TraceChecks = field(default_factory=TraceChecks)
    grid: Grid | None = None
    timeline: Timeline | None = None
    older_names: ClassVar[Mapping[str, str]] = {"real": "key_mask"}

    def __post_init__(self) -> None:
        names = [layer.name for layer in self.layers]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ArgumentError(f"layers need names of their own. {twice} occur more than once.")
        for name, tensor in (("ids", self.ids), ("key_mask", self.key_mask)):
            if tensor is not None:
                check_rank(name, tensor, ("batch", "position"))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the layers in the order they ran."""
        return tuple(layer.name for layer in self.layers)

    @property
    def labels(self) -> tuple[str, ...]:
        """What a person calls the layers: "layer 23", with stack and kind only where there are several."""
        return tuple(layer_labels([layer.id for layer in self.layers]))

    @property
    def n_layer(self) -> int:
        return len(self.layers)

    @property
    def n_batch(self) -> int:
        return self.layers[0].n_batch if self.layers else len(self.tokens)

    @property
    def unverified(self) -> tuple[str, ...]:
        """The layers whose weights do not explain the output that the model itself computed."""
        return tuple(check.name for check in self.checks.layers if not check.passed)

    @property
    def not_seen(self) -> str:
        """What of the model may be attention and is in no layer, in words; empty where there is nothing."""
        return self.marks.get("not seen", "")

    @property
    def marks(self) -> dict[str, str]:
        """What a reader must know before believing the trace, in words; empty where that is nothing."""
        said = {word.replace("_", " "): self.facts.get(word) for word in _MARKS}
        return {word: str(words) for word, words in said.items() if words}

    @property
    def bytes(self) -> int:
        """Bytes of all tensors held, each counted once."""
        return sum({(t.data_ptr(), t.dtype): t.numel() * t.element_size() for t in self.tensors}.values())

    def layer(self, index_or_name: Which) -> AnyLayer:
        """Return the layer of that index or name."""
        if isinstance(index_or_name, int):
            return self.layers[whole_index("layer", index_or_name, len(self.layers))]
        if index_or_name not in self.names:
            raise ArgumentError(f"there is no layer {index_or_name!r}: there are {', '.join(self.names)}.")
        return self.layers[self.names.index(index_or_name)]

    def tile(self, layer: Which, head: int, rows: slice, cols: slice, batch: int = 0) -> Tile:
        """Return weights of `rows` x `cols` of one head: costs its own area only."""
        return self.layer(layer).tile(head, rows, cols, batch)

    def row(self, layer: Which, head: int, query: int, batch: int = 0) -> Float[Tensor, "key"]:
        """Return the weights of one query."""
        return self.layer(layer).row(head, query, batch)

    def column(self, layer: Which, head: int, key: int, batch: int = 0) -> Float[Tensor, "query"]:
        """Return the weights of all queries on one key."""
        return self.layer(layer).column(head, key, batch)

    def column_sums(
        self, layer: Which, head: int | None = None, rows: slice = slice(None), batch: int = 0
    ) -> PerKey:
        """Sum the weights of all queries, or of `rows`, on each key, for one head or all (None): O(N)."""
        return self.layer(layer).column_sums(head, rows, batch)

    def weights(self, layer: Which, head: int | None, batch: int | None = 0) -> Matrices:
        """Return one head's whole matrix; None for all heads, or all sequences, which then have an axis."""
        return self.layer(layer).weights(head, batch)

    def to_numpy(self, layer: Which, head: int | None = None, batch: int | None = 0) -> np.ndarray:
        """Return `weights` as a NumPy array, of float32 at least."""
        weights = self.weights(layer, head, batch)
        return weights.to(torch.promote_types(weights.dtype, torch.float32)).cpu().numpy()

    def to_dataframe(self, layer: Which, head: int | None = None, batch: int = 0) -> Any:
        """Return every weight as a row of a pandas table: head, query, key, their tokens.

        Masked cells are left out.
        """
        traced = self.layer(layer)
        heads = range(traced.n_head) if head is None else [whole_index("head", head, traced.n_head)]
        seen = torch.stack([traced.visible(one, slice(None), slice(None), batch) for one in heads])
        weights = torch.stack([traced.weights(one, batch) for one in heads])[seen]
        at, query, key = (index.tolist() for index in seen.nonzero(as_tuple=True))
        rows, cols = self.query_tokens(layer, batch), self.key_tokens(layer, batch)
        columns: dict[str, list[Any]] = {"head": [heads[index] for index in at], "query": query, "key": key}
        columns |= {"weight": weights.tolist(), "query_token": [rows[index] for index in query]}
        return dataframe(columns | {"key_token": [cols[index] for index in key]})

    def pooled(
        self,
        layer: Which,
        head: int | None,
        n_row: int,
        n_col: int,
        how: Pooling = "max",
        rows: slice = slice(None),
        cols: slice = slice(None),
        batch: int = 0,
    ) -> Float[Tensor, "*head n_row n_col"]:
        """Pool one head or all (None): the largest or mean weight of `n_row` x `n_col` blocks."""
        return self.layer(layer).pooled(head, n_row, n_col, how, rows, cols, batch)

    def query_tokens(self, layer: Which, batch: int = 0) -> tuple[str, ...]:
        """Label the rows of a layer's weights: tokens, or positions where their number does not fit."""
        return self._labels(self.layer(layer), batch, 2)

    def key_tokens(self, layer: Which, batch: int = 0) -> tuple[str, ...]:
        """Label the columns: with the source in cross-attention, else with the tokens themselves."""
        return self._labels(self.layer(layer), batch, 3)

    def _in_encoder(self, layer: AnyLayer) -> bool:
        """Whether a layer belongs to the encoder of an encoder-decoder."""
        return bool(self.source_tokens) and "decoder" not in layer.id.stack and layer.kind == "self"

    def _labels(self, layer: AnyLayer, batch: int, axis: int) -> tuple[str, ...]:
        of_source = (axis == 3 and layer.kind == "cross") or self._in_encoder(layer)
        lines = (of_source and self.source_tokens) or self.tokens
        line = lines[batch] if batch < len(lines) else ()  # a layer may have cut its sequences into windows
        size = layer.shape[axis]
        # Queries of a step with a cache, or of a chunk, stand at later positions.
        start = layer.visibility.start if axis == 2 and layer.visibility is not None else 0
        if start and start + size <= len(line):
            return line[start : start + size]
        return line if len(line) == size else tuple(map(str, range(start, start + size)))

    def _about(self) -> dict[str, str]:
        """What it is of, in a few words each."""
        known = {name: value for name, value in self.facts.items() if value is not None}
        longest = max((layer.n_query for layer in self.layers), default=0)
        about = {
            "trace of": str(known.get("name", known.get("source", "a model"))),
            "text": " ".join(self.text)[:200] if self.text else "",
            "tokens": f"{longest}" + (f", {self.n_batch} sequences" if self.n_batch > 1 else ""),
            "layers": f"{self.n_layer} of {max((layer.n_head for layer in self.layers), default=0)} heads",
            "holds": f"{self.bytes / 1e6:.1f} MB",
            "check": str(self.checks),
            **self.marks,
        }
        return {word: said for word, said in about.items() if said}

    def __repr__(self) -> str:
        said = self._about()
        sizes = f"{said['tokens']} tokens, layers {said['layers']}, {said['holds']}"
        marked = f", UNVERIFIED: {', '.join(self.unverified)}" if self.unverified else ""
        missing = "".join(f", {word}: {words}" for word, words in self.marks.items() if word != "unverified")
        return f"Trace({said['trace of'][:60]}: {sizes}, {self.checks!r}{marked}{missing})"

    def _repr_html_(self) -> str:
        """The trace as a notebook shows it: what it is of, and a small picture of every head."""
        table = tag(
            "table", *(tag("tr", tag("th", word), tag("td", said)) for word, said in self._about().items())
        )
        shown, left = [], _SMALL_COST
        for layer in self.layers:
            left -= layer.n_head * layer.n_query * layer.n_key
            if left < 0:  # too long a text for the value of a cell: the page draws it
                break
            shown.append([_small(layer, head) for head in range(layer.n_head)])
        if not shown:
            return table.text
        title = "where each head looks" if len(shown) == self.n_layer else f"the first {len(shown)} layers"
        from regard.drawing.figures import head_pictures  # matplotlib is slow to import

        drawn = BytesIO()
        head_pictures(shown, title=title).savefig(drawn, format="png", dpi=90)
        return (table + picture(drawn.getvalue(), title)).text

    def save(self, path: str | Path) -> None:
        """Write one safetensors file, all of it or nothing."""
        store.write(Path(path), self.as_dict())

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Load the trace that `save` wrote; its tensors stay in the file until they are looked at."""
        return store.read(Path(path), cls.from_dict)

    @classmethod
    def from_weights(
        cls,
        weights: Any,
        rows: Sequence[str] | None = None,
        cols: Sequence[str] | None = None,
        *,
        name: str = "weights",
    ) -> Trace:
        """Wrap weights that you already have, NumPy or torch: every picture and measure works on them.

        1-D is one row (key), 2-D (query, key), 3-D (head, query, key), 4-D (batch, head, query, key) and
        5-D (layer, batch, head, query, key). Several layers may also come as a list of 4-D arrays, as
        transformers' `output_attentions` gives them. `cols` are the labels of keys, as `rows` unless given.

        >>> trace = Trace.from_weights([[0.25, 0.75]], rows=["a"], cols=["x", "y"])
        >>> trace.row(0, 0, 0)
        tensor([0.2500, 0.7500])
        """
        tables = _layers_of(weights)
        n_batch, _, n_query, n_key = tables[0].shape
        if cols is None and rows is not None and n_query != n_key:
            raise ShapeError(f"weights are {n_query} x {n_key}: rows alone label a square, give cols too.")
        for side, labels, size in (("rows", rows, n_query), ("cols", cols, n_key)):
            if labels is not None and len(labels) != size:
                raise ShapeError(f"there are {len(labels)} labels of {side} for {size} {side}: one each.")
        same_labels = cols is None or list(cols) == list(rows or ())
        layers = tuple(
            DenseLayerTrace(
                name if len(tables) == 1 else f"{name}.{index}",
                values,
                kind="self" if same_labels and values.shape[2] == values.shape[3] else "cross",
            )
            for index, values in enumerate(tables)
        )
        tokens = () if rows is None else (tuple(map(str, rows)),) * n_batch
        source = () if cols is None or layers[0].kind == "self" else (tuple(map(str, cols)),) * n_batch
        return cls(layers, tokens, source, facts={"source": "weights given"})


def _small(layer: AnyLayer, head: int) -> np.ndarray:
    """A head of the first sequence: the largest weight of each block, NaN where all of it is hidden."""
    rows, cols = (block_ends(slice(0, size), _SMALL) for size in layer.shape[2:])
    return pooled_max(layer, head, rows, cols)


def _layers_of(weights: Any) -> list[Tensor]:
    """Weights of 1 to 5 dimensions, or several layers of them, as (batch, head, query, key) each."""
    if isinstance(weights, list | tuple) and weights and getattr(weights[0], "ndim", 0) >= 2:
        return [layer for some in weights for layer in _layers_of(some)]
    try:
        table = torch.as_tensor(weights)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(f"weights must be numbers, NumPy or torch. {error}.") from error
    if not 1 <= table.dim() <= 5 or not table.numel():
        raise ShapeError(
            "weights must be (key), (query, key), (head, query, key), (batch, head, query, key) or "
            f"(layer, batch, head, query, key), with at least one number. Got shape {tuple(table.shape)}."
        )
    if table.dtype.is_complex or table.dtype == torch.bool:
        raise ShapeError(f"weights must be real numbers. Got dtype {table.dtype}.")
    table = table.detach() if table.is_floating_point() else table.float()
    return list(table[(None,) * (5 - table.dim())].unbind(0))
