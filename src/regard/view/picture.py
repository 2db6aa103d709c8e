"""The views of the page as matplotlib figures, for papers: no browser needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from matplotlib.figure import Figure

from regard.drawing.figures import head_pictures, heat_map, lines, shaded_text
from regard.errors import ArgumentError
from regard.view.document import Document

View = Literal["map", "lines", "text", "heads"]

MOST_DRAWN = 1024  # rows and columns of a map: beyond, blocks are drawn by their largest weight
MOST_LINES = 128  # tokens of lines: beyond, nothing can be told apart
_SMALL = 40


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a picture shows."""

    layer: int
    head: int
    view: View = "map"
    query: int | None = None  # the token whose row is drawn as text, or whose links alone are
    against: tuple[int, int] | None = None  # a layer and head: the map is then the difference


def figure_of(document: Document, wanted: Wanted) -> Figure:
    """The figure of one view.

    >>> from regard.tracing.traces import Trace
    >>> document = Document(Trace.from_weights([[0.25, 0.75]], rows=["a"], cols=["x", "y"]), title="weights")
    >>> figure_of(document, Wanted(0, 0)).axes[0].get_title(loc="left")
    'weights, layer 0, head 0'
    """
    if wanted.against is not None and wanted.view != "map":
        raise ArgumentError(f"a difference of two heads is a map. Got the view {wanted.view!r}.")
    if wanted.query is not None:
        n_query = document.trace.layers[wanted.layer].n_query
        if not 0 <= wanted.query < n_query:
            raise ArgumentError(f"there is no query {wanted.query}: there are {n_query} tokens.")
    return {"map": _map, "lines": _lines, "text": _text, "heads": _heads}[wanted.view](document, wanted)


def _title(document: Document, wanted: Wanted) -> str:
    return f"{document.title}, layer {wanted.layer}, head {wanted.head}"


def _words(document: Document, layer: int) -> tuple[list[str], list[str]]:
    rows, cols = document.names(layer)
    return [word.strip() or "␣" for word in rows], [word.strip() or "␣" for word in cols]


def _tile(document: Document, layer: int, head: int, most: int) -> np.ndarray:
    found = document.trace.layers[layer]
    rows, cols = slice(0, found.n_query), slice(0, found.n_key)
    return document.tile(layer, head, rows, cols, min(found.n_query, most), min(found.n_key, most))


def _map(document: Document, wanted: Wanted) -> Figure:
    found = document.trace.layers[wanted.layer]
    tile = _tile(document, wanted.layer, wanted.head, MOST_DRAWN)
    title = _title(document, wanted)
    if wanted.against is not None:
        other = _tile(document, *wanted.against, MOST_DRAWN)
        if other.shape != tile.shape:
            raise ArgumentError(
                f"layers {wanted.layer} and {wanted.against[0]} have no common tokens: a difference needs "
                f"maps of one size. Got {tile.shape} and {other.shape}."
            )
        tile = tile - other
        title += f", minus layer {wanted.against[0]}, head {wanted.against[1]}"
    rows, cols = _words(document, wanted.layer)
    if tile.shape != (found.n_query, found.n_key):
        rows, cols = (list(map(str, range(size))) for size in tile.shape)
        title += f": {found.n_query} x {found.n_key}, each dot the largest weight of its block"
    return heat_map(
        torch.from_numpy(np.nan_to_num(tile)),
        rows,
        cols,
        visible=torch.from_numpy(~np.isnan(tile)),
        title=title,
        diverging=wanted.against is not None,
    )


def _lines(document: Document, wanted: Wanted) -> Figure:
    found = document.trace.layers[wanted.layer]
    if max(found.n_query, found.n_key) > MOST_LINES:
        raise ArgumentError(
            f"lines are drawn for up to {MOST_LINES} tokens, beyond that they are a tangle. "
            f"Got {found.n_query} x {found.n_key}."
        )
    rows, cols = _words(document, wanted.layer)
    tile = np.nan_to_num(_tile(document, wanted.layer, wanted.head, MOST_LINES))
    chosen = None if wanted.query is None else [wanted.query]
    return lines(torch.from_numpy(tile)[None], rows, cols, chosen=chosen, title=_title(document, wanted))


def _text(document: Document, wanted: Wanted) -> Figure:
    found = document.trace.layers[wanted.layer]
    query = found.n_query - 1 if wanted.query is None else wanted.query
    rows = slice(query, query + 1)
    row = document.tile(wanted.layer, wanted.head, rows, slice(0, found.n_key), 1, found.n_key)[0]
    names, keys = document.names(wanted.layer)
    said = names[query].strip() or "␣"
    return shaded_text(
        torch.from_numpy(np.nan_to_num(row)),
        keys,
        visible=torch.from_numpy(~np.isnan(row)),
        chosen=query if names == keys else None,
        title=f"{_title(document, wanted)}: what “{said}” ({query}) looks at, at most {np.nanmax(row):.3f}",
    )


def _heads(document: Document, wanted: Wanted) -> Figure:
    pictures = [
        [_tile(document, layer, head, _SMALL) for head in range(found.n_head)]
        for layer, found in enumerate(document.trace.layers)
    ]
    return head_pictures(pictures, title=f"{document.title}: where each head looks")
