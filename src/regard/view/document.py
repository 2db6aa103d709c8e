"""One sequence of a trace as the page sees it: what there is, tiles of it, the numbers behind a weight."""

import base64
import heapq
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from regard.errors import ArgumentError
from regard.heads.chance import RandomNull
from regard.heads.labels import AgainstChance, label
from regard.heads.measures import measure
from regard.registry import MEASURES
from regard.tracing.images import open_image
from regard.tracing.layers import AnyLayer, LayerTrace
from regard.tracing.pooling import block_ends, pooled_max
from regard.tracing.traces import Trace
from regard.view.story import OPENINGS, scenes, words_of
from regard.view.texts import text_key

Json = dict[str, Any]
ModelKind = Literal["encoder", "decoder", "encoder-decoder", "unknown"]
Predicts = Literal["next", "masked", "vector"]

_MOST_TEXELS = 1 << 22  # numbers of one answer
LONGEST = 640  # pixels of the longer side: some 100 KB
_ALIKE = 0.95  # correlation of pixels: ways to make a picture smaller differ by less, a crop by more


@dataclass(frozen=True, slots=True, eq=False)
class LayerVectors:
    """What the queries and keys of a layer were made from, as `inside` had it from the model."""

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
    off: tuple[tuple[int, ...], ...] = ()  # heads, (layer, head)
    cut: tuple[tuple[int, ...], ...] = ()  # links, (layer, head, query, key)
    prediction: Json | None = None  # kept for a page without a model
    kind: ModelKind = "unknown"
    predicts: Predicts | None = None
    generated: Json | None = None
    written_last: str = "…"  # what an encoder-decoder writes after its last token
    source: list[int] | None = None  # the ids that an encoder read, beside a decoder's
    special_ids: frozenset[int] = frozenset()
    recipes: Mapping[str, Json] = field(default_factory=dict)  # by layer: what is done around attention
    make_null: Callable[[], RandomNull] | None = None  # what random weights reach, where the model is here
    image: str | None = None  # a data URL: what a vision model saw
    vectors: Mapping[str, LayerVectors] = field(
        default_factory=dict
    )  # by layer: what a page without a model keeps
    _facts: list[Json] = field(default_factory=list)  # filled when first asked for

    @property
    def ids(self) -> list[int]:
        """The tokens of the sequence."""
        assert self.trace.ids is not None  # who asks has the model, which read them
        return list(self.trace.ids[self.batch].tolist())

    def meta(self, precision: str = "as computed") -> Json:
        """What the page must know before it asks for a number."""
        trace, grid, tokens = self.trace, self.trace.grid, _line(self.trace.tokens, self.batch)
        facts = {name: value for name, value in trace.facts.items() if isinstance(value, str | int | bool)}
        labels = trace.labels
        layers = [
            {
                "name": layer.name,
                "label": labels[index],
                "stack": layer.id.stack,
                "index": layer.id.index,
                "kind": layer.kind,
                "mechanism": layer.word,
                "heads": layer.n_head,
                "queries": layer.n_query,
                "keys": layer.n_key,
                "rows": self._side(trace.query_tokens(index, self.batch), layer.kind == "cross"),
                "cols": self._side(trace.key_tokens(index, self.batch), False),
                "values": layer.v is not None,
                "kvHeads": k.shape[1] if (k := getattr(layer, "k", None)) is not None else layer.n_head,
                "masked": _masks(layer),
                "bias": layer.rule is not None and layer.rule.bias is not None,
                "sink": layer.rule is not None and layer.rule.sink is not None,
                "recipe": self.recipes.get(layer.name),
            }
            for index, layer in enumerate(trace.layers)
        ]
        as_it_is = ("id", "text", "target", "kind", "predicts", "generated")
        return {
            **{name: getattr(self, name) for name in as_it_is},
            "title": self.title or str(trace.facts.get("name", "trace")),
            "model": facts,
            "modelKey": self.model_key,
            "tokens": list(tokens),
            "written": [*tokens[1:], self.written_last] if tokens else [],
            "source": list(_line(trace.source_tokens, self.batch)),
            "layers": layers,
            "notices": [*self.notices, *(f"{word}: {said}" for word, said in trace.marks.items())],
            "checks": str(trace.checks),
            "off": [list(head) for head in self.off],
            "cut": [list(link) for link in self.cut],
            "ref": text_key(self.text),
            "prediction": self.prediction,
            "precision": precision,
            "grid": None  # where in its image the positions of a vision model are
            if grid is None
            else {"rows": grid.rows, "columns": grid.columns, "before": grid.before, "image": self.image},
        }

    def _side(self, labels: tuple[str, ...], writes: bool) -> str | None:
        """Whose names an axis has: a row of cross-attention is called by what the model writes next."""
        tokens, source = _line(self.trace.tokens, self.batch), _line(self.trace.source_tokens, self.batch)
        lines = {"written": tokens if writes else (), "source": source, "tokens": tokens}
        return next((whose for whose, line in lines.items() if line and labels == line), None)

    def names(self, layer: int) -> tuple[list[str], list[str]]:
        """What the rows and the columns of a layer are called."""
        rows = self.trace.query_tokens(layer, self.batch)
        if self._side(rows, self.trace.layers[layer].kind == "cross") == "written":
            rows = (*rows[1:], self.written_last)
        return list(rows), list(self.trace.key_tokens(layer, self.batch))

    def tile(
        self, layer: int, head: int, rows: slice, cols: slice, n_row: int, n_col: int, *, valued: bool = False
    ) -> np.ndarray:
        """The largest weight of each of `n_row` x `n_col` blocks, NaN where all of a block is hidden.

        `valued` multiplies each weight by the length of the value vector it carries.
        """
        traced = self.layer(layer, head)
        for name, part, size in (("rows", rows, traced.n_query), ("cols", cols, traced.n_key)):
            if not 0 <= part.start < part.stop <= size:
                raise ArgumentError(f"{name} must lie in 0 to {size}. Got {part.start} to {part.stop}.")
        n_texel = min(n_row, rows.stop - rows.start) * min(n_col, cols.stop - cols.start)
        if min(n_row, n_col) < 1 or n_texel > _MOST_TEXELS:
            raise ArgumentError(f"a tile has 1 to {_MOST_TEXELS} numbers. Got {n_row} x {n_col}.")
        lengths = None
        if valued:
            if traced.v is None:
                raise ArgumentError(f"the values of {traced.name} were not kept: trace with keep_v=True.")
            lengths = traced.of_head(traced.v, head, self.batch)[0, 0].float().norm(dim=-1)
        ends = block_ends(rows, n_row), block_ends(cols, n_col)
        return pooled_max(traced, head, *ends, self.batch, lengths)

    def small(self, layer: int, head: int, most: int) -> np.ndarray:
        """The whole head in a tile of at most `most` rows and columns."""
        traced = self.layer(layer, head)
        return self.tile(layer, head, slice(0, traced.n_query), slice(0, traced.n_key), most, most)

    def parts(self, layer: int, head: int, query: int, key: int) -> Json:
        """The numbers behind one weight."""
        traced = self.layer(layer, head)
        parts = traced.score_parts(head, query, key, batch=self.batch)
        v = None if traced.v is None else traced.of_head(traced.v, head, self.batch)[0, 0, key].tolist()
        weight = parts.weight if parts.visible else 0.0
        shown: Json = plain({**asdict(parts), "mechanism": traced.word, "weight": weight, "v": v})
        return shown

    def pairs(self, layer: int, head: int, count: int = 10) -> list[Json]:
        """The largest weights of a head and where they are."""
        best: list[tuple[float, int, int]] = []
        for rows, cols, block in self.layer(layer, head).strips(head, batch=self.batch):
            flat = block.float().flatten()
            for index in flat.topk(min(count, len(flat))).indices.tolist():
                row, col = divmod(index, block.shape[2])
                best.append((float(flat[index]), rows.start + row, cols.start + col))
        best = heapq.nlargest(count, best)
        return [{"query": query, "key": key, "weight": weight} for weight, query, key in best if weight > 0]

    def facts(self) -> Json:
        """Return what is known of each head.

        That is: measures [layer][head] by name with their chance levels and whether they stand out, the label
        and rule of each head, the scenes of the tour, and openings. Where the model is here, captions say
        what stands out from random weights; elsewhere they do not claim that anything does.
        """
        if not self._facts:
            null = None if self.make_null is None else self.make_null()
            facts = self._measured(self.trace, null)
            names = [self.names(index) for index in range(len(self.trace.layers))]
            facts["scenes"] = scenes(
                self.trace, names, text=self.text, predicts=self.predicts, null=null, batch=self.batch
            )
            facts["openings"] = [{"title": one.title, "text": one.text} for one in OPENINGS]
            self._facts.append(facts)
        return self._facts[0]

    def head_facts(self, layer: int, head: int) -> Json:
        """Measure one head, which takes a moment where all heads of a long text take minutes."""
        traced = self.layer(layer, head)
        at = head
        if self._facts:
            facts = self._facts[0]
        else:
            if isinstance(traced, LayerTrace) and traced.uniform_rows is None:
                group = head * traced.k.shape[1] // traced.n_head
                traced, at = (
                    replace(
                        traced,
                        q=traced.q[:, head : head + 1],
                        k=traced.k[:, group : group + 1],
                        v=None,
                        lse=traced.lse[:, head : head + 1],
                        rule=traced.rule.part([head], None),
                    ),
                    0,
                )
            facts, layer = self._measured(replace(self.trace, layers=(traced,))), 0
        measures = {
            name: {"what": one["what"], "value": one["values"][layer][at], "chance": one["chance"][layer]}
            for name, one in facts["measures"].items()
        }
        # A label is compared with all heads of random models, which is known with the facts of all heads.
        return {"measures": measures, "label": facts["labels"][layer][at] if self._facts else None}

    def _measured(self, trace: Trace, null: RandomNull | None = None) -> Json:
        """Measure the heads of a trace of this text, and label them."""
        measured = measure(trace, batch=self.batch, special_ids=self.special_ids)
        unknown, n_heads = torch.full((len(measured.layers),), torch.nan), measured.n_heads
        facts: Json = {"measures": {}, "labels": [[] for _ in n_heads]}
        against = AgainstChance(measured, null)
        for name, info in MEASURES.items():
            tables = (measured[name], measured.chance.get(name, unknown))
            table, chance = (plain(numbers.double().round(decimals=6)) for numbers in tables)
            facts["measures"][name] = {
                "what": info.sentence,
                "values": [row[:n_head] for row, n_head in zip(table, n_heads, strict=True)],
                "chance": chance,
                "standsOut": [
                    [against.compare(name, layer, head).stands_out for head in range(n_head)]
                    for layer, n_head in enumerate(n_heads)
                ],
            }
        of_label = {info.label.name: name for name, info in MEASURES.items() if info.label}
        for head in label(measured, null=null):
            index = measured.layers.index(head.layer)
            said = None
            if head.label != "none":
                about = of_label.get(head.label)
                share = None
                if about is not None and MEASURES[about].unit == "share":
                    share = facts["measures"][about]["values"][index][len(facts["labels"][index])]
                said = {"label": head.label, "rule": head.rule, "share": share}
            facts["labels"][index].append(said)
        return facts

    def links(self, query: int, layer: int = 0, count: int = 12) -> list[Json]:
        """Return where each head looks most from one query, what exceeds an even spread most first."""
        side = self._side(self.trace.query_tokens(layer, self.batch), self.layer(layer, 0).kind == "cross")
        found = []
        for index, traced in enumerate(self.trace.layers):
            same = self._side(self.trace.query_tokens(index, self.batch), traced.kind == "cross") == side
            if not same or query >= traced.n_query:
                continue
            one, every = slice(query, query + 1), slice(0, traced.n_key)
            rows = traced.block(None, one, every, self.batch)[0, :, 0].float().cpu()
            words = words_of(self.names(index)[1])
            for head, row in enumerate(rows):
                n_seen = int(traced.visible(head, one, every, self.batch).sum())
                if n_seen:
                    key, weight = int(row.argmax()), float(row.max())
                    link = {"layer": index, "head": head, "key": key, "weight": weight, "even": 1 / n_seen}
                    # Links to other words first: on special tokens and on oneself most heads rest.
                    rests = not bool(words[key]) or (key == query and traced.kind == "self")
                    found.append((rests, -(weight - 1 / n_seen) / max(1e-9, 1 - 1 / n_seen), link))
        found.sort(key=lambda one: one[:2])
        return [link for *_, link in found[:count]]

    def layer(self, layer: int, head: int) -> AnyLayer:
        """A layer that is there, and has that head."""
        if not 0 <= layer < len(self.trace.layers):
            raise ArgumentError(f"there is no layer {layer}: there are {len(self.trace.layers)}.")
        traced = self.trace.layers[layer]
        if not 0 <= head < traced.n_head:
            raise ArgumentError(f"there is no head {head}: {traced.name} has {traced.n_head}.")
        return traced


def documents_of(trace: Trace, image: Any = None) -> list[Document]:
    """A document for each sequence of a trace; `image` lies under the patches of a vision model."""
    texts = trace.text or ("",) * trace.n_batch
    name = str(trace.facts.get("name", "trace"))
    documents = []
    for batch, shown in enumerate(pictures(trace, image)):
        title = f"{name} · sequence {batch}" if trace.n_batch > 1 else name
        documents.append(Document(trace, batch, f"trace-{batch}", title, text=texts[batch], image=shown))
    return documents


def _masks(layer: AnyLayer) -> bool:
    """Return whether a layer masks any key from any query."""
    visibility = layer.visibility
    if visibility is None:
        return False
    parts = (getattr(visibility, part.name) for part in fields(visibility) if part.name != "start")
    return any(part is not None and part is not False for part in parts)


def _line(lines: tuple[tuple[str, ...], ...], batch: int) -> tuple[str, ...]:
    return lines[batch] if lines else ()


def plain(value: Any) -> Any:
    """Numbers that JSON has no word for become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return plain(value.tolist()) if isinstance(value, torch.Tensor) else value


def pictures(trace: Trace, given: Any = None) -> list[str | None]:
    """A data URL for each sequence of a trace: what its model saw, or what is `given` in its place.

    None where there is no grid of patches that a picture could lie under.
    """
    grid = trace.grid
    seen = None if grid is None or grid.image is None else [_opened(image) for image in grid.image.numpy()]
    if given is None:
        return [None] * trace.n_batch if seen is None else [_url(image) for image in seen]
    if grid is None:
        raise ArgumentError("the trace has no grid of patches for an image to lie under.")
    images = [_opened(image) for image in (given if isinstance(given, list) else [given])]
    if len(images) != trace.n_batch:
        raise ArgumentError(f"the trace is of {trace.n_batch} images, and {len(images)} were given.")
    for image, shown in zip(images, seen or (), strict=seen is not None):
        # An image is what the model saw but for its size: a cropped one has patches elsewhere.
        ours, theirs = (np.asarray(one.resize((32, 32)), dtype=np.float64).ravel() for one in (image, shown))
        flat = min(ours.std(), theirs.std()) < 1  # of one colour: nothing to compare
        if not flat and np.corrcoef(ours, theirs)[0, 1] < _ALIKE:
            raise ArgumentError(
                f"the image, made {shown.width} x {shown.height} pixels, is not what the model saw: another, "
                "or its processor cropped it. Leave `image` out to see what the model saw, or give that part."
            )
    return [_url(image) for image in images]


def _opened(image: Any) -> Any:
    from PIL import Image  # slow to import

    if isinstance(image, str | Path):
        return open_image(image)
    try:
        if not isinstance(image, Image.Image):
            array = np.asarray(image)
            grey = array.ndim == 3 and array.shape[2] < 3
            image = Image.fromarray(array[..., 0] if grey else array[..., :3])
        return image.convert("RGB")
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        kinds = "the path of its file, one of Pillow's, or an array (height, width, channel) of bytes"
        raise ArgumentError(f"an image is {kinds}. Got {type(image).__name__}: {error}.") from error


def _url(image: Any) -> str:
    image.thumbnail((LONGEST, LONGEST))
    written = BytesIO()
    image.save(written, "JPEG", quality=92, subsampling=0)
    return f"data:image/jpeg;base64,{base64.b64encode(written.getvalue()).decode('ascii')}"
