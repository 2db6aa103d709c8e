"""The views of the page without a browser: matplotlib figures for papers, shaded blocks for a terminal."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from matplotlib.figure import Figure
from rich.cells import set_cell_size
from rich.text import Text
from torch import Tensor

from regard.drawing.figures import (
    PALETTE,
    Scale,
    head_pictures,
    heat_map,
    lines,
    shaded_text,
    timeline_map,
)
from regard.errors import ArgumentError
from regard.view.document import Document

View = Literal["map", "lines", "text", "heads"]

MOST_DRAWN = 1024  # rows and columns of a map: beyond, blocks are drawn by their largest weight
MOST_LINES = 128  # tokens of lines: beyond, nothing can be told apart
_SMALL = 40
SHADES = "░▒▓█"  # of a terminal
LABEL_WIDTH = 12


def figure_of(
    document: Document,
    layer: int,
    head: int,
    view: View = "map",
    query: int | None = None,
    against: tuple[int, int] | None = None,
    *,
    rows: slice | None = None,
    cols: slice | None = None,
    scale: Scale = "linear",
) -> Figure:
    """Draw one view.

    Args:
        document: What is shown.
        layer: Which layer.
        head: Which head.
        view: As map, lines or text, or all heads.
        query: The token whose row is drawn as text (by default the last), or whose lines alone are.
        against: A layer and head; the map is then the difference from it.
        rows: The queries of the map; None: all.
        cols: The keys of the map; None: all.
        scale: How colours follow the weights.

    Returns:
        A figure of matplotlib.

    Raises:
        ArgumentError: If a place is not there, or the view cannot be drawn as asked.

    >>> from regard.tracing.traces import Trace
    >>> document = Document(Trace.from_weights([[0.25, 0.75]], rows=["a"], cols=["x", "y"]), title="weights")
    >>> figure_of(document, 0, 0).axes[0].get_title(loc="left")
    'weights, layer 0, head 0'
    """
    traced = document.layer(layer, head)
    size = (traced.n_query, traced.n_key)
    if against is not None and view != "map":
        raise ArgumentError(f"a difference of two heads is a map. Got the view {view!r}.")
    if query is not None and not 0 <= query < traced.n_query:
        raise ArgumentError(f"there is no query {query}: there are {traced.n_query} tokens.")
    if view == "heads":
        pictures = [
            [document.small(index, number, _SMALL) for number in range(any_layer.n_head)]
            for index, any_layer in enumerate(document.trace.layers)
        ]
        return head_pictures(pictures, title=f"{document.title}: where each head looks")
    title = f"{document.title}, layer {layer}, head {head}"
    names, keys = document.names(layer)
    row_names, col_names = ([word.strip() or "␣" for word in words] for words in (names, keys))
    if view != "map" and (rows is not None or cols is not None):
        raise ArgumentError(f"a part of the rows and columns is drawn as a map. Got the view {view!r}.")
    if view == "text":
        at = traced.n_query - 1 if query is None else query
        row = document.tile(layer, head, slice(at, at + 1), slice(0, traced.n_key), 1, traced.n_key)[0]
        weights, visible = torch.from_numpy(np.nan_to_num(row)), torch.from_numpy(~np.isnan(row))
        title += f": what “{row_names[at]}” ({at}) looks at, at most {np.nanmax(row):.3f}"
        return shaded_text(weights, keys, visible=visible, chosen=at if names == keys else None, title=title)
    if view == "lines":
        if max(size) > MOST_LINES:
            raise ArgumentError(f"lines are drawn for up to {MOST_LINES} tokens. Got {size[0]} x {size[1]}.")
        weights = torch.from_numpy(np.nan_to_num(document.small(layer, head, MOST_LINES)))
        return lines(
            weights[None], row_names, col_names, chosen=None if query is None else [query], title=title
        )
    timeline = document.trace.timeline
    if timeline is not None and traced.kind == "cross" and against is None:
        n_key, spectrogram = timeline.n_sound, timeline.spectrogram
        weights = document.trace.weights(layer, head, document.batch).float()[:, :n_key]
        sound = None
        if spectrogram is not None:
            n_frame = round(spectrogram.shape[-1] * n_key / timeline.n_position)
            sound = spectrogram[document.batch, :, :n_frame]
        return timeline_map(weights, row_names, n_key * timeline.seconds, spectrogram=sound, title=title)
    rows, cols = rows or slice(0, size[0]), cols or slice(0, size[1])
    tile = document.tile(layer, head, rows, cols, MOST_DRAWN, MOST_DRAWN)
    if against is not None:
        other = document.layer(*against)
        if (other.n_query, other.n_key) != size:
            raise ArgumentError(
                f"a difference needs maps of one size. Got {size} and {(other.n_query, other.n_key)}."
            )
        tile = tile - document.tile(*against, rows, cols, MOST_DRAWN, MOST_DRAWN)
        title += f", minus layer {against[0]}, head {against[1]}"
    shown = (rows.stop - rows.start, cols.stop - cols.start)
    row_names, col_names = row_names[rows], col_names[cols]
    if tile.shape != shown:
        row_names, col_names = (
            [str(part.start + at * (part.stop - part.start) // drawn) for at in range(drawn)]
            for part, drawn in zip((rows, cols), tile.shape, strict=True)
        )
        title += f": {shown[0]} x {shown[1]}, each dot the largest weight of its block"
    weights, visible = torch.from_numpy(np.nan_to_num(tile)), torch.from_numpy(~np.isnan(tile))
    return heat_map(
        weights,
        row_names,
        col_names,
        visible=visible,
        title=title,
        diverging=against is not None,
        scale=scale,
    )


def printable(word: str) -> str:
    """The word without characters that would steer a terminal.

    >>> printable("a\\x1b[31m")
    'a\\ufffd[31m'
    """
    shown = word.strip() or "␣"
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in shown)


def terminal_heat_map(
    weights: Float[Tensor, "query key"],
    visible: Bool[Tensor, "query key"],
    rows: Sequence[str],
    cols: Sequence[str],
) -> Text:
    """Two characters a cell: words stand upright above their columns, hidden cells are dots."""
    row_labels, col_labels = (
        [word if len(word) < LABEL_WIDTH else f"{word[: LABEL_WIDTH - 2]}…" for word in map(printable, words)]
        for words in (rows, cols)
    )
    tallest = max(map(len, col_labels))
    drawing = Text(no_wrap=True)
    for line in range(tallest):
        upright = (label.rjust(tallest)[line] for label in col_labels)
        drawing.append(" " * LABEL_WIDTH + "".join(set_cell_size(char, 2) for char in upright) + "\n", "dim")

    largest = float(weights.max()) or 1.0
    for row, label in enumerate(row_labels):
        drawing.append(set_cell_size(label, LABEL_WIDTH))
        for col in range(len(col_labels)):
            if not visible[row, col]:
                drawing.append("· ", "bright_black")
                continue
            share = float(weights[row, col]) / largest
            red, green, blue = (round(255 * part) for part in PALETTE(share)[:3])
            shade = SHADES[min(len(SHADES) - 1, int(share * len(SHADES)))]
            behind = f"rgb({red // 2},{green // 2},{blue // 2})"
            drawing.append(shade * 2, f"rgb({red},{green},{blue}) on {behind}")
        drawing.append("\n")
    steps = (f"{shade * 2} {step * largest / len(SHADES):.2f}+" for step, shade in enumerate(SHADES))
    return drawing.append(f"\nweight      {'  '.join(steps)}  · hidden\n", "dim")
