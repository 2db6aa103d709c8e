"""Figures of attention, drawn with matplotlib and without touching the reader's pyplot state."""

import bisect
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.colorbar import Colorbar
from matplotlib.colors import FuncNorm, LinearSegmentedColormap, Normalize, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from torch import Tensor

from regard.errors import ArgumentError, ShapeError
from regard.registry import DIFFERENCE_COLORS, LABEL_COLORS, WEIGHT_COLORS

PALETTE = LinearSegmentedColormap.from_list("weights", WEIGHT_COLORS)  # as the page has them
DIVERGING = LinearSegmentedColormap.from_list("differences", DIFFERENCE_COLORS)  # orange: more; blue: less
Scale = Literal["linear", "sqrt", "log"]
_FLOOR = 1e-4  # what the log scale begins with: as the page has it
HIDDEN = "#e4e4e8"
CELL = 0.42  # inches
FORMATS = ("png", "svg", "pdf")  # that pictures are written in
PICTURES = ("jpg", "jpeg", "gif", "webp", "eps", "ps", "tif", "tiff", "bmp")  # endings of other formats
LARGEST_SIDE = 12.0  # inches
QUERY, KEY = "query (looks)", "key (is looked at)"
MOST_LABELS = 64  # beyond this the words would overlap, so positions are numbered instead
MOST_NUMBERS = 12  # a cell this large still has room for its weight in figures
_LEGEND: dict[str, Any] = {"fontsize": 8, "frameon": False}
CHART_COLOURS = ("#0072b2", "#d55e00", "#1b7837", "#5e3c99", "#8c8c8c", "#e69f00")  # of lines and bars


def heat_map(
    weights: Float[Tensor, "query key"],
    rows: Sequence[str],
    cols: Sequence[str],
    *,
    visible: Bool[Tensor, "query key"] | None = None,
    title: str | None = None,
    ax: Axes | None = None,
    largest: float | None = None,
    diverging: bool = False,
    scale: Scale = "linear",
) -> Figure:
    """Draw one head's weights as a heat map: each row a query, each column a key it looks at.

    Args:
        weights: ``(query, key)``.
        rows: Names of the queries.
        cols: Names of the keys.
        visible: ``(query, key)``, False where a key is masked. Masked cells are grey, so that "may not look"
            and "looks with weight 0" differ.
        title: Stands above the figure.
        ax: Axes to draw into; by default a new figure is made.
        largest: The weight of the last colour; by default the largest one. Give it to compare figures.
        diverging: For a difference of two heads: 0 has the colour in the middle.
        scale: How colours follow the weights: "linear", "sqrt" or "log".

    Returns:
        The figure.

    Example:

    >>> import torch
    >>> figure = heat_map(torch.eye(2), ["a", "b"], ["a", "b"])
    >>> figure.axes[0].get_xlabel()
    'key (is looked at)'
    """
    table = _checked(weights, rows, cols, visible)
    cell = min(CELL, LARGEST_SIDE / max(table.shape))
    figure, ax = _framed(ax, cell * len(cols) + 2.4, cell * len(rows) + 1.7, title, pad=10)
    place = {"ax": ax, "fraction": 0.05, "aspect": 28, "pad": 0.02}
    bar = _draw_map(ax, table, rows, cols, largest, diverging, scale=scale, bar=place)
    bar.set_label("difference of weights" if diverging else "weight", fontsize=9)
    return figure


def heat_maps(
    weights: Float[Tensor, "*panel query key"],
    rows: Sequence[str] | None = None,
    cols: Sequence[str] | None = None,
    *,
    visible: Bool[Tensor, "*#panel query key"] | None = None,
    ax: Axes | None = None,
) -> Figure:
    """Draw several heads as heat maps, each with its title and colour bar.

    Args:
        weights: ``(head, query, key)`` fills a square of panels; ``(batch, head, query, key)`` has a row for
            each sequence and a column for each head.
        rows: Names of the queries; by default positions.
        cols: Names of the keys; by default positions.
        visible: False where a key is masked, broadcast over the panels.
        ax: Axes to draw into; by default a new figure is made.

    Returns:
        The figure.

    Example:

    >>> import torch
    >>> figure = heat_maps(torch.rand(2, 3, 4, 4))
    >>> [ax.get_title(loc="left") for ax in figure.axes[0].child_axes][:2]
    ['sequence 0, head 0', 'sequence 0, head 1']
    """
    if not 3 <= weights.dim() <= 4 or not weights.numel():
        wanted = "(head, query, key) or (batch, head, query, key), with at least one weight"
        raise ShapeError(f"weights must be {wanted}. Got shape {tuple(weights.shape)}.")
    *places, n_query, n_key = weights.shape
    n_col = places[1] if len(places) == 2 else math.ceil(math.sqrt(places[0]))
    n_row = math.ceil(math.prod(places) / n_col)
    rows = list(map(str, range(n_query))) if rows is None else rows
    cols = list(map(str, range(n_key))) if cols is None else cols
    seen = (torch.ones(1, dtype=torch.bool) if visible is None else visible).expand(weights.shape)
    cell = min(0.3, LARGEST_SIDE / max(n_row * (n_query + 4), n_col * (n_key + 6)))
    wide, high = max(1.9, cell * n_key + 1.5), max(1.7, cell * n_query + 1.2)
    figure, ax = _framed(ax, n_col * wide, n_row * high)
    ax.set_axis_off()
    left, below = min(0.3, 1.1 / wide), min(0.3, 0.85 / high)
    size = (1 - left - 0.42 / wide) / n_col, (1 - below - 0.3 / high) / n_row
    for index, at in enumerate(np.ndindex(*places)):
        row, col = divmod(index, n_col)
        panel = ax.inset_axes(((col + left) / n_col, 1 - (row + 1 - below) / n_row, *size))
        place = {"cax": panel.inset_axes((1.03, 0, 0.04, 1))}
        _draw_map(panel, _checked(weights[at], rows, cols, seen[at]), rows, cols, None, small=True, bar=place)
        title = "".join(f"sequence {batch}, " for batch in at[:-1]) + f"head {at[-1]}"
        panel.set_title(title, fontsize=8, loc="left", pad=4, parse_math=False)
        panel.set_xlabel("key" if index + n_col >= math.prod(places) else "", fontsize=8)
        panel.set_ylabel("query" if col == 0 else "", fontsize=8)
    return figure


def timeline_map(
    weights: Float[Tensor, "query key"],
    rows: Sequence[str],
    seconds: float,
    *,
    spectrogram: Float[Tensor, "mel frame"] | None = None,
    path: Int[Tensor, "query"] | None = None,
    title: str | None = None,
) -> Figure:
    """Draw what each written token looks at in a sound: time along one axis, tokens along the other.

    Args:
        weights: ``(query, key)``: a row for each token, a column for each position in time.
        rows: The tokens.
        seconds: How long all columns last.
        spectrogram: ``(mel, frame)`` of the same time, drawn above, low tones at the bottom.
        path: ``(query,)``: a key for each row, drawn as dots.
        title: Stands above the figure.

    Returns:
        A figure. The colours run from 0 to the largest weight.

    Example:
        >>> figure = timeline_map(torch.eye(3), ["a", "b", "c"], 1.5)
        >>> figure.axes[0].get_xlabel()
        'seconds (is looked at)'
    """
    n_query, n_key = weights.shape
    if len(rows) != n_query or not weights.numel() or seconds <= 0:
        raise ShapeError(
            f"a timeline needs a name for each row, and time. Got weights {tuple(weights.shape)}, "
            f"{len(rows)} rows, {seconds} seconds."
        )
    high = min(LARGEST_SIDE, 0.22 * n_query + 1.2)
    above = [1.0] if spectrogram is not None else []
    figure = new_figure(10.0, high + sum(above) + 0.3)
    axes = figure.subplots(1 + len(above), 1, sharex=True, height_ratios=[*above, high], squeeze=False)[:, 0]
    ax = axes[-1]
    ends = (0.0, seconds)
    if spectrogram is not None:
        sound = spectrogram.float().cpu().numpy()
        axes[0].imshow(sound, "magma", aspect="auto", origin="lower", extent=(*ends, 0, len(sound)))
        axes[0].set_yticks([])
        axes[0].set_ylabel("sound", fontsize=9)
        axes[0].tick_params(length=0)
        axes[0].spines[:].set_visible(False)
    table, place = weights.float().cpu().numpy(), (*ends, n_query - 0.5, -0.5)
    image = ax.imshow(table, PALETTE, vmin=0, aspect="auto", extent=place, interpolation="nearest")
    ax.set_xlabel("seconds (is looked at)", fontsize=9)
    ax.set_ylabel("token (looks)", fontsize=9)
    ax.set_yticks(range(n_query), [_visible_word(word) for word in rows], parse_math=False, fontsize=8)
    ax.tick_params(length=2)
    ax.spines[:].set_visible(False)
    if path is not None:
        middle = (path.cpu().numpy() + 0.5) * seconds / n_key
        ax.plot(middle, range(n_query), "o", markersize=3.5, markerfacecolor="none", color="#ff7f0e")
    bar = figure.colorbar(image, ax=list(axes), fraction=0.03, aspect=32, pad=0.01)
    bar.set_label("weight", fontsize=9)
    bar.outline.set_visible(False)
    if title is not None:
        axes[0].set_title(title, fontsize=10, loc="left", parse_math=False)
    return figure


def _visible_word(word: str) -> str:
    return word.strip() or "␣"


def head_grid(
    labels: Sequence[Sequence[str]], kinds: Sequence[str], *, title: str | None = None, ax: Axes | None = None
) -> Figure:
    """Draw a grid of layers x heads, each cell coloured by its label.

    A row is a layer, the first at the top. Cells carry a short form of their label, so that the figure can be
    read without its colours.

    Args:
        labels: A row of labels for each layer; layers may have different numbers of heads.
        kinds: All labels there are; the last one is left pale.
        title: Stands above the figure.
        ax: Axes to draw into; by default a new figure is made.

    Returns:
        The figure.

    Raises:
        ShapeError: If there is no label, or one that is not of `kinds`.

    Example:

    >>> figure = head_grid([["sink", "none"], ["none"]], ["sink", "none"])
    >>> figure.axes[0].get_ylabel()
    'layer'
    """
    unknown = {label for row in labels for label in row} - set(kinds)
    if unknown or not labels or not any(labels):
        names, got = ", ".join(kinds), sorted(unknown) or "none"
        raise ShapeError(f"labels must be rows of {names}, with one at least. Got {got}.")
    widest = max(map(len, labels))
    palette = list(LABEL_COLORS.values())
    colours = {kind: LABEL_COLORS.get(kind, palette[at % len(palette)]) for at, kind in enumerate(kinds)}
    colours[kinds[-1]] = LABEL_COLORS["none"]
    cell = min(CELL, 0.8 * LARGEST_SIDE / max(widest, len(labels)))
    figure, ax = _framed(ax, cell * widest + 2.6, max(cell * len(labels), 0.17 * len(kinds)) + 1.1, title)
    size = min(8.0, 18 * cell)
    for layer, row in enumerate(labels):
        for head, label in enumerate(row):
            colour, corner = colours[label], (head - 0.46, layer - 0.46)
            ax.add_patch(Rectangle(corner, 0.92, 0.92, color=colour, linewidth=0))
            if label != kinds[-1]:
                words = label.split("-")
                short = "".join(word[0] for word in words) if len(words) > 1 else label[:2]
                ax.text(head, layer, short, ha="center", va="center", fontsize=size, color=_ink_on(colour))
    ax.set(xlim=(-0.6, widest - 0.4), ylim=(len(labels) - 0.4, -0.6))
    ax.set_aspect("equal", anchor="NW")
    _layers_and_heads(ax, cell, range(len(labels)), range(widest))
    counts = {kind: sum(row.count(kind) for row in labels) for kind in kinds}
    handles = [Patch(color=colours[kind], label=f"{kind} ({n})") for kind, n in counts.items() if n]
    ax.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0, **_LEGEND)
    return figure


def curves(
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    x_label: str,
    y_label: str,
    title: str | None = None,
) -> Figure:
    """Draw several lines, each named in the legend.

    Args:
        lines: The points of each line by its name, as (x, y).
        x_label: Name of the horizontal axis.
        y_label: Name of the vertical axis.
        title: Stands above the figure.

    Returns:
        The figure.

    Raises:
        ShapeError: If there is no line, or one without as many x as y.

    Example:

    >>> figure = curves({"a": ([0.0, 1.0], [2.0, 3.0])}, x_label="x", y_label="y")
    >>> figure.axes[0].get_xlabel()
    'x'
    """
    if not lines or any(len(x) != len(y) or not len(x) for x, y in lines.values()):
        raise ShapeError("a line needs as many x as y, one point at least, and there must be a line.")
    figure, ax = _framed(None, 6.4, 4.0)
    style_axes(ax, title)
    for index, (name, (x, y)) in enumerate(lines.items()):
        ax.plot(x, y, **line_style(index), label=name)
    ax.set_xlabel(x_label, fontsize=9)
    ax.set_ylabel(y_label, fontsize=9)
    ax.legend(**_LEGEND)
    return figure


def style_axes(ax: Axes, title: str | None) -> None:
    """Style axes for lines and bars: a title, a pale grid behind them and no frame."""
    ax.set_title(title or "", fontsize=10, loc="left", pad=8, parse_math=False)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color=HIDDEN, linewidth=0.8)
    ax.set_axisbelow(True)
    ax.tick_params(labelsize=8)


def line_style(index: int) -> dict[str, Any]:
    """Return how the line of that number is drawn: its colour and its markers."""
    colour, marker = CHART_COLOURS[index % len(CHART_COLOURS)], "os^Dvx"[index % 6]
    return {"color": colour, "marker": marker, "markersize": 4, "linewidth": 1.5}


def effect_maps(
    tables: Mapping[str, tuple[Tensor, Sequence[str] | None]],
    *,
    rows: Sequence[str],
    title: str | None = None,
) -> Figure:
    """Draw tables of effects side by side, layers down.

    All tables share one scale, symmetric about 0: orange raises, blue lowers. NaN, which was not
    measured, is grey.

    Args:
        tables: By name, the effects ``(layer, column)`` and the names of the columns; None: heads, numbered.
        rows: Names of the layers.
        title: Stands above the figure.

    Returns:
        The figure.

    Raises:
        ShapeError: If a table does not have a row for each layer.

    Example:

    >>> import torch
    >>> figure = effect_maps({"heads": (torch.tensor([[1.0, -2.0]]), None)}, rows=["0"])
    >>> [ax.get_title() for ax in figure.axes[:1]]
    ['heads']
    """
    arrays = [(name, table.detach().double().cpu().numpy(), cols) for name, (table, cols) in tables.items()]
    if not arrays or any(array.ndim != 2 or len(array) != len(rows) for _, array, _ in arrays):
        raise ShapeError(f"each table must have a row for each of {len(rows)} layers.")
    reach = max(float(np.nanmax(np.abs(array), initial=0.0)) for _, array, _ in arrays) or 1.0
    widths = [max(8, array.shape[1]) for _, array, _ in arrays]
    cell = min(CELL, 0.8 * LARGEST_SIDE / max(sum(widths), len(rows)))
    figure = new_figure(cell * sum(widths) + 3.2, cell * len(rows) + 2.2)
    axes = figure.subplots(1, len(arrays), squeeze=False, width_ratios=widths)[0]
    colours = DIVERGING.with_extremes(bad=HIDDEN)
    down = slice(None, None, max(1, math.ceil(len(rows) / 40)))
    for ax, width, (name, array, columns) in zip(axes, widths, arrays, strict=True):
        image = ax.imshow(array, colours, vmin=-reach, vmax=reach, aspect="auto", interpolation="nearest")
        places = range(array.shape[1])
        across = slice(None, None, max(1, math.ceil(len(places) / max(1, 6 * cell * width))))
        words = (list(map(str, places)) if columns is None else columns)[across]
        ax.set_xticks(places[across], words, rotation=90 if columns else 0, fontsize=7)
        ax.set_yticks(range(len(rows))[down], rows[down], fontsize=7)
        ax.tick_params(left=ax is axes[0], labelleft=ax is axes[0])
        ax.set_title(name, fontsize=9)
        ax.set_xlabel("head" if columns is None else "", fontsize=8)
    bar = figure.colorbar(image, ax=list(axes), shrink=0.8, label="change of the answer")
    bar.ax.tick_params(labelsize=7)
    figure.suptitle(title or "", fontsize=10)
    return figure


def head_pictures(
    pictures: Sequence[Sequence[np.ndarray]], *, title: str | None = None, ax: Axes | None = None
) -> Figure:
    """Draw layers x heads as small pictures, a layer in each row.

    Each picture has its own scale, by the square root of the weights: it says where a head looks, not
    how much more than another.

    Args:
        pictures: A row of pictures ``(query, key)`` for each layer; NaN is masked. Layers may have different
            numbers of heads, and pictures different sizes.
        title: Stands above the figure.
        ax: Axes to draw into; by default a new figure is made.

    Returns:
        The figure.

    Raises:
        ShapeError: If there is no picture.

    Example:

    >>> figure = head_pictures([[np.eye(3), np.ones((3, 3))], [np.eye(2)]])
    >>> figure.axes[0].get_xlabel()
    'head'
    """
    if not pictures or not any(len(row) for row in pictures):
        raise ShapeError("there is no picture: a figure of heads needs at least one.")
    side = max(size for row in pictures for picture in row for size in picture.shape)
    step, widest = side + max(2, side // 8), max(map(len, pictures))
    wall = np.ones((step * len(pictures), step * widest, 4))
    for layer, row in enumerate(pictures):
        for head, picture in enumerate(row):
            shown = np.sqrt(np.clip(np.where(np.isnan(picture), 0, picture), 0, None))
            colours = PALETTE(shown / (shown.max() or 1.0))
            colours[np.isnan(picture)] = (*to_rgb(HIDDEN), 1.0)
            # Each picture fills its place: sizes differ where queries and keys do.
            down, across = (np.arange(side) * size // side for size in picture.shape)
            place = (slice(layer * step, layer * step + side), slice(head * step, head * step + side))
            wall[place] = colours[down][:, across]
    cell = min(0.6, LARGEST_SIDE / max(widest, len(pictures)))
    figure, ax = _framed(ax, cell * widest + 0.8, cell * len(pictures) + 0.9, title)
    ax.imshow(wall, interpolation="nearest")
    middles = (side - 1) / 2 + step * np.arange(max(widest, len(pictures)))
    _layers_and_heads(ax, cell, middles[: len(pictures)], middles[:widest])
    return figure


LINE_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a6fd1", "#7a7f87")


def lines(
    weights: Float[Tensor, "head query key"],
    rows: Sequence[str],
    cols: Sequence[str],
    *,
    chosen: Sequence[int] | None = None,
    title: str | None = None,
    ax: Axes | None = None,
) -> Figure:
    """Draw two columns of tokens and a line for each weight, a colour for each head.

    Width and strength of a line are its weight over the largest one; below 2 % of that it is left out.

    Args:
        weights: ``(head, query, key)``.
        rows: Names of the queries.
        cols: Names of the keys.
        chosen: Draw the lines of these queries alone.
        title: Stands above the figure.
        ax: Axes to draw into; by default a new figure is made.

    Returns:
        The figure.

    Example:

    >>> import torch
    >>> figure = lines(torch.eye(2)[None], ["a", "b"], ["a", "b"])
    >>> len(figure.axes[0].collections[0].get_segments())
    2
    """
    for head in weights:
        _checked(head, rows, cols)
    if not weights.numel():
        raise ShapeError("there is no head: lines need at least one.")
    longest = max(len(rows), len(cols))
    label = 0.085 * max(len(word) for word in (*rows, *cols)) + 0.2
    figure, ax = _framed(ax, 3.2 + 2 * label, 0.21 * longest + 0.9, title, pad=18)
    values = np.nan_to_num(weights.detach().float().cpu().numpy())
    top = float(values.max()) or 1.0
    along = np.linspace(0, 1, 25)
    smooth = along * along * (3 - 2 * along)
    for head, table in enumerate(values):
        colour = LINE_COLOURS[head % len(LINE_COLOURS)]
        large = np.argwhere(table >= max(0.02 * top, 1e-12))
        places = [(query, key) for query, key in large if chosen is None or query in chosen]
        shares = [float(table[query, key]) / top for query, key in places]
        links = [np.column_stack([along, query + (key - query) * smooth]) for query, key in places]
        wide = [0.4 + 3.6 * share for share in shares]
        shades = [(*to_rgb(colour), min(1.0, 0.08 + 0.9 * share)) for share in shares]
        ax.add_collection(LineCollection(links, linewidths=wide, colors=shades, capstyle="round"))
    for words, what, x, align in ((rows, QUERY, -0.03, "right"), (cols, KEY, 1.03, "left")):
        ax.text(x, -1.2, what, ha=align, fontsize=8, color="#66666e")
        for place, word in enumerate(words):
            faint = x < 0 and chosen is not None and place not in chosen
            ink = "#9a9aa2" if faint else "black"
            ax.text(x, place, word, ha=align, va="center", fontsize=9, color=ink, parse_math=False)
    ax.set(xlim=(0, 1), ylim=(longest - 0.4, -0.6))
    ax.set_axis_off()
    return figure


def shaded_text(
    weights: Float[Tensor, "token"],
    tokens: Sequence[str],
    *,
    visible: Bool[Tensor, "token"] | None = None,
    chosen: int | None = None,
    title: str | None = None,
    ax: Axes | None = None,
    width: int = 72,
) -> Figure:
    """Draw the text itself, each token shaded by its weight.

    Tokens are written as they are, with a space before those that have none.

    Args:
        weights: ``(token,)``.
        tokens: The text, token by token.
        visible: ``(token,)``, False where a token is masked; masked ones are grey.
        chosen: The index of a token that is framed.
        title: Stands above the figure.
        ax: Axes to draw into; by default a new figure is made.
        width: Characters in a line.

    Returns:
        The figure.

    Example:

    >>> import torch
    >>> figure = shaded_text(torch.tensor([0.1, 0.9]), ["to", "be"])
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['to', 'be']
    """
    table = _checked(weights[None], ["one"], tokens, None if visible is None else visible[None])[0]
    places = list(_wrapped(tokens, width))
    n_line = places[-1][0] + 1
    points, letter, step = 10.0, 0.602, 1.7  # a character's size; in it, its width and the distance of lines
    is_new = ax is None
    inches = points / 72
    figure, ax = _framed(ax, letter * inches * width + 0.4, n_line * step * inches + 0.6, title, pad=6)
    if not is_new:
        points = min(points, 72 * ax.get_window_extent().width / figure.dpi / (letter * width))
    top, palette = _largest(table), colormaps["Blues"]  # pale at 0: a text stays a text
    for index, ((line, start, word), value) in enumerate(zip(places, table, strict=True)):
        colour = HIDDEN if value is np.ma.masked else palette(0.85 * float(value) / top)
        corner, frame = (start - 0.15, line + 0.1), "#d55e00" if index == chosen else "none"
        ax.add_patch(Rectangle(corner, len(word) + 0.3, 0.8, fc=colour, ec=frame, linewidth=1.4))
        letters: dict[str, Any] = {"family": "monospace", "fontsize": points, "color": _ink_on(colour)}
        ax.text(start, line + 0.5, word, va="center", parse_math=False, **letters)
    ax.set(xlim=(-0.5, width + 0.5), ylim=(n_line, 0))
    ax.set_axis_off()
    return figure


def _wrapped(tokens: Sequence[str], width: int) -> Iterator[tuple[int, int, str]]:
    """Return line, first character and word of each token; pieces of a word (##s) stand together."""
    spaced = any(token.startswith((" ", "▁")) for token in tokens)
    line = column = 0
    for token in tokens:
        word = token.replace("▁", " ").strip() or "␣"
        joined = word.startswith("##") or (spaced and not token.startswith((" ", "▁")))
        word = word.removeprefix("##")[: width - 1]
        column += 0 if joined or not column else 1
        if column and column + len(word) > width:
            line, column = line + 1, 0
        yield line, column, word
        column += len(word)


def new_figure(wide: float, high: float) -> Figure:
    """Return an empty figure of this size in inches."""
    figure = Figure(figsize=(wide, high), layout="constrained", dpi=120)
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: Path, kind: str | None = None) -> bool:
    """Write a picture as PNG, SVG or PDF.

    Args:
        figure: What is written.
        path: The file. Its ending says the format; a file without a known one is a PNG.
        kind: The format that was asked for by name, png or svg: a file that ends otherwise is refused, but
            for a PDF, which is written.

    Returns:
        Whether the font lacked a character, which is drawn as a box.

    Raises:
        ArgumentError: If the file's ending is that of another format.
    """
    ending = path.suffix.lower().removeprefix(".")
    by_ending = ending if ending in FORMATS else None
    if ending in PICTURES and by_ending is None:
        raise ArgumentError(f"{path} cannot be written: a picture is {', '.join(FORMATS)}, not {ending}.")
    if kind is not None and by_ending not in (None, kind, "pdf"):
        raise ArgumentError(f"{path} cannot be written as {kind.upper()}: its ending says {ending.upper()}.")
    kind = "pdf" if by_ending == "pdf" else kind or by_ending or "png"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figure.savefig(path, format=kind)
    return any("missing from font" in str(warning.message) for warning in caught)


def _framed(
    ax: Axes | None, wide: float, high: float, title: str | None = None, pad: int = 8
) -> tuple[Figure, Axes]:
    """Return the given axes and their figure, or new ones of this size in inches, with a title."""
    if ax is None:
        ax = new_figure(wide, high).add_subplot()
    figure = ax.get_figure(root=True)
    assert isinstance(figure, Figure)
    if title is not None:
        ax.set_title(title, fontsize=10, loc="left", pad=pad, parse_math=False)
    return figure, ax


def softmaxed_twice(weights: Float[Tensor, "query key"]) -> bool:
    """Return whether every row is the softmax of probabilities, some of which are 0, as hidden keys have.

    The logarithm of such a row, moved so that it sums to 1, is the row before the second softmax.

    >>> once = torch.tensor([[1.0, 0.0, 0.0], [0.4, 0.6, 0.0]])
    >>> softmaxed_twice(once.softmax(-1)), softmaxed_twice(once)
    (True, False)
    """
    rows = weights.double()
    if rows.shape[-1] < 2 or not bool((rows > 0).all()) or bool(((rows.sum(-1) - 1).abs() > 1e-4).any()):
        return False
    logs = rows.log()
    before = logs + (1 - logs.sum(-1, keepdim=True)) / rows.shape[-1]
    return bool((before > -1e-5).all()) and bool((before < 1e-5).any())


def _checked(
    weights: Tensor, rows: Sequence[str], cols: Sequence[str], visible: Tensor | None = None
) -> np.ma.MaskedArray[Any, Any]:
    """Return weights as an array that masks what is hidden."""
    if tuple(weights.shape) != (len(rows), len(cols)) or not weights.numel():
        shape = f"{tuple(weights.shape)}, with {len(rows)} rows and {len(cols)} cols"
        raise ShapeError(f"weights is {shape}: it must be (query, key), with a label for each, one at least.")
    if visible is not None and visible.shape != weights.shape:
        shapes = f"visible is {tuple(visible.shape)} and weights is {tuple(weights.shape)}"
        raise ShapeError(f"{shapes}: they must have the same shape (query, key).")
    if softmaxed_twice(weights.detach()):
        warnings.warn(
            "these rows are a softmax of rows that are probabilities already, which makes all weights nearly "
            "equal: draw the weights themselves.",
            stacklevel=3,
        )
    values = weights.detach().float().cpu().numpy()
    return np.ma.masked_array(values, False if visible is None else ~visible.cpu().numpy())


def _largest(table: np.ma.MaskedArray[Any, Any]) -> float:
    """Return the largest number that is shown, which has the last colour."""
    return float(np.abs(table.compressed()).max(initial=0.0)) or 1.0


def _draw_map(
    ax: Axes,
    table: np.ma.MaskedArray[Any, Any],
    rows: Sequence[str],
    cols: Sequence[str],
    largest: float | None,
    diverging: bool = False,
    *,
    small: bool = False,
    scale: Scale = "linear",
    bar: dict[str, Any],
) -> Colorbar:
    """Draw one head's weights as coloured cells, with words beside them and numbers in them while these fit.

    `bar` says where the colour bar goes, which is given back.
    """
    top, size = _largest(table) if largest is None else largest, 7 if small else 9
    colours, low = (DIVERGING, -top) if diverging else (PALETTE, 0.0)
    image = ax.imshow(table, colours, norm=_norm(scale, low, top), aspect="equal")
    ax.set_facecolor(HIDDEN)
    ax.set_ylabel(QUERY, fontsize=9)
    ax.set_xlabel(KEY, fontsize=9)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0, labelsize=size)
    if max(table.shape) <= MOST_LABELS * size / 9:
        # A word may hold a dollar sign, which matplotlib would read as a formula.
        slanted: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
        ax.set_xticks(range(len(cols)), cols, parse_math=False, **slanted)
        ax.set_yticks(range(len(rows)), rows, parse_math=False)
        ax.set_xticks(np.arange(1, len(cols)) - 0.5, minor=True)
        ax.set_yticks(np.arange(1, len(rows)) - 0.5, minor=True)
        ax.grid(which="minor", color="white", linewidth=1.0)
        ax.tick_params(which="minor", length=0)
    else:
        for names, set_ticks in ((cols, ax.set_xticks), (rows, ax.set_yticks)):
            set_ticks(*_numbered(names))
    if max(table.shape) <= MOST_NUMBERS and not small:
        for row, col in np.argwhere(~np.ma.getmaskarray(table)):
            value = table[row, col]
            ink = _ink_on(image.cmap(image.norm(value)))
            said = f"{value if abs(value) >= 0.005 else 0.0:.2f}"  # never -0.00
            ax.text(col, row, said, ha="center", va="center", fontsize=7, color=ink)
    drawn = ax.figure.colorbar(image, **bar)
    drawn.outline.set_visible(False)
    drawn.ax.tick_params(labelsize=6 if small else 8, length=2)
    return drawn


def _numbered(names: Sequence[str]) -> tuple[list[int], list[str]]:
    """Return where an axis of many places has ticks, and their positions: what numbers say, or the place.

    >>> _numbered([str(4 * place) for place in range(100)])  # a map of 400 positions, four to a place
    ([0, 13, 25, 38, 50, 63, 75, 88], ['0', '50', '100', '150', '200', '250', '300', '350'])
    """
    positions = [int(name) for name in names] if all(name.isdigit() for name in names) else range(len(names))
    last = positions[-1]
    rough = max(1, last / 8)
    size = 10 ** math.floor(math.log10(rough))
    step = int(size * next(times for times in (1, 2, 5, 10) if times * size >= rough))
    shown = list(range(0, last + 1, step))
    return [bisect.bisect_left(positions, position) for position in shown], list(map(str, shown))


def _norm(scale: Scale, low: float, top: float) -> Normalize:
    """Return where numbers stand between the first colour and the last, on either side of 0."""
    if scale == "linear" or not top > 0:
        return Normalize(low, top)

    def forward(value: Any) -> Any:
        size = np.clip(np.abs(value) / top, 0.0, 1.0)
        if scale == "log":
            return np.sign(value) * np.where(
                size > _FLOOR, 1 - np.log(np.maximum(size, _FLOOR)) / np.log(_FLOOR), 0
            )
        return np.sign(value) * np.sqrt(size)

    def inverse(part: Any) -> Any:
        size = np.abs(part)
        return np.sign(part) * top * (_FLOOR ** (1 - size) if scale == "log" else size**2)

    return FuncNorm((forward, inverse), vmin=low, vmax=top)


def _ink_on(colour: object) -> str:
    """Return black or white, whichever is read more easily upon a colour."""
    red, green, blue = to_rgb(colour)  # type: ignore[arg-type]
    return "black" if 0.3 * red + 0.59 * green + 0.11 * blue > 0.55 else "white"


def _layers_and_heads(ax: Axes, cell: float, rows: range | np.ndarray, cols: range | np.ndarray) -> None:
    """Number the rows of axes as layers and the columns as heads."""
    ax.set_xticks(cols, [str(head) for head in range(len(cols))])
    ax.set_yticks(rows, [str(layer) for layer in range(len(rows))])
    ax.set_xlabel("head", fontsize=9)
    ax.set_ylabel("layer", fontsize=9)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0, labelsize=min(8.0, 20 * cell))
