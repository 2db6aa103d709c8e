"""Figures of attention, drawn with matplotlib and without touching the reader's pyplot state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from torch import Tensor

from regard.errors import ShapeError

PALETTE = "viridis"  # even steps in lightness, and readable with every kind of colour blindness
HIDDEN = "#e4e4e8"
CELL = 0.42  # inches
LARGEST_SIDE = 12.0  # inches
MOST_LABELS = 64  # beyond this the words would overlap, so positions are numbered instead
MOST_NUMBERS = 12  # a cell this large still has room for its weight in figures


def heat_map(
    weights: Float[Tensor, "query key"],
    rows: Sequence[str],
    cols: Sequence[str],
    *,
    visible: Bool[Tensor, "query key"] | None = None,
    title: str | None = None,
    ax: Axes | None = None,
    largest: float | None = None,
) -> Figure:
    """A figure of one head's weights: each row a query, each column a key it looks at.

    Cells that `visible` hides are grey, so that "may not look" and "looks with weight 0" differ.
    The colours run from 0 to `largest`, or to the largest weight: give it to compare figures.

    >>> import torch
    >>> figure = heat_map(torch.eye(2), ["a", "b"], ["a", "b"])
    >>> figure.axes[0].get_xlabel()
    'key (is looked at)'
    """
    if tuple(weights.shape) != (len(rows), len(cols)):
        raise ShapeError(
            f"weights is {tuple(weights.shape)}, with {len(rows)} rows and {len(cols)} cols: it must be "
            f"(query, key), with one row label for each query and one column label for each key."
        )
    if weights.numel() == 0:
        raise ShapeError(
            f"weights is {tuple(weights.shape)} and has no weights to draw: "
            f"it needs at least one query and one key."
        )
    if visible is not None and visible.shape != weights.shape:
        raise ShapeError(
            f"visible is {tuple(visible.shape)} and weights is {tuple(weights.shape)}: "
            f"they must have the same shape (query, key)."
        )
    values = weights.detach().float().cpu().numpy()
    hidden = np.zeros(values.shape, bool) if visible is None else ~visible.cpu().numpy()
    top = largest if largest is not None else float(values.max()) or 1.0

    if ax is None:
        cell = min(CELL, LARGEST_SIDE / max(values.shape))
        n_query, n_key = values.shape
        figure = Figure(figsize=(cell * n_key + 2.4, cell * n_query + 1.7), layout="constrained", dpi=120)
        FigureCanvasAgg(figure)
        ax = figure.add_subplot()
    else:
        figure = ax.get_figure(root=True)  # type: ignore[assignment]

    ax.set_facecolor(HIDDEN)
    image = ax.imshow(np.ma.masked_array(values, hidden), cmap=PALETTE, vmin=0.0, vmax=top, aspect="equal")
    _label(ax, rows, cols)
    if max(values.shape) <= MOST_NUMBERS:
        _write_numbers(ax, values, hidden, top)
    if title is not None:
        ax.set_title(title, fontsize=10, loc="left", pad=10, parse_math=False)
    bar = figure.colorbar(image, ax=ax, fraction=0.05, aspect=28, pad=0.02)
    bar.set_label("weight", fontsize=9)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8, length=2)
    return figure


def _label(ax: Axes, rows: Sequence[str], cols: Sequence[str]) -> None:
    """Words beside the cells while they fit, and thin white lines between the cells."""
    ax.set_ylabel("query (looks)", fontsize=9)
    ax.set_xlabel("key (is looked at)", fontsize=9)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0, labelsize=9)
    if max(len(rows), len(cols)) > MOST_LABELS:
        return
    # A word may hold a dollar sign, which matplotlib would read as a formula.
    ax.set_xticks(range(len(cols)), cols, rotation=45, ha="right", rotation_mode="anchor", parse_math=False)
    ax.set_yticks(range(len(rows)), rows, parse_math=False)
    ax.set_xticks(np.arange(1, len(cols)) - 0.5, minor=True)
    ax.set_yticks(np.arange(1, len(rows)) - 0.5, minor=True)
    ax.grid(which="minor", color="white", linewidth=1.0)
    ax.tick_params(which="minor", length=0)


def _write_numbers(ax: Axes, values: np.ndarray, hidden: np.ndarray, top: float) -> None:
    for (row, col), value in np.ndenumerate(values):
        if not hidden[row, col]:
            colour = "black" if value > 0.6 * top else "white"
            ax.text(col, row, f"{value:.2f}", ha="center", va="center", fontsize=7, color=colour)


# One colour for each kind of thing: hues that stay apart for most eyes, and letters in the cells for all.
# What is common (resting on a delimiter or the first token, looking everywhere) is pale.
KINDS = (
    "#0072b2",
    "#56b4e9",
    "#1f4e79",
    "#5e3c99",
    "#f4b26a",
    "#d55e00",
    "#dccfb2",
    "#e07bb0",
    "#c51b7d",
    "#1b7837",
    "#a8d8c5",
    "#b5b5bb",
)


def head_grid(
    labels: Sequence[Sequence[str]],
    kinds: Sequence[str],
    *,
    rows: Sequence[str] | None = None,
    title: str | None = None,
    ax: Axes | None = None,
    legend: bool = True,
) -> Figure:
    """A figure of layers x heads, each cell coloured by its label; the last of `kinds` is left pale.

    A row is a layer, the first at the top. Cells carry a short form of their label, so that colour alone
    says nothing. Layers may have different numbers of heads.

    >>> figure = head_grid([["sink", "none"], ["none"]], ["sink", "none"])
    >>> figure.axes[0].get_ylabel()
    'layer'
    """
    unknown = {label for row in labels for label in row} - set(kinds)
    if unknown or not labels or not any(labels):
        raise ShapeError(
            f"labels must be rows of {', '.join(kinds)}, with one at least. Got {sorted(unknown) or 'none'}."
        )
    if rows is not None and len(rows) != len(labels):
        raise ShapeError(f"there are {len(rows)} names for {len(labels)} layers: one each.")
    widest = max(map(len, labels))
    colours = {kind: KINDS[index % len(KINDS)] for index, kind in enumerate(kinds)}
    colours[kinds[-1]] = "#f0f0f2"
    cell = min(CELL, 0.8 * LARGEST_SIDE / max(widest, len(labels)))
    if ax is None:
        figure = Figure(
            figsize=(cell * widest + 2.6, max(cell * len(labels), 0.17 * len(kinds)) + 1.1),
            layout="constrained",
            dpi=120,
        )
        FigureCanvasAgg(figure)
        ax = figure.add_subplot()
    else:
        figure = ax.get_figure(root=True)  # type: ignore[assignment]
    size = min(8.0, 18 * cell)
    for layer, row in enumerate(labels):
        for head, label in enumerate(row):
            ax.add_patch(
                Rectangle((head - 0.46, layer - 0.46), 0.92, 0.92, color=colours[label], linewidth=0)
            )
            if label != kinds[-1]:
                words = label.split("-")
                short = "".join(word[0] for word in words) if len(words) > 1 else label[:2]
                red, green, blue = to_rgb(colours[label])
                ink = "black" if 0.3 * red + 0.59 * green + 0.11 * blue > 0.55 else "white"
                ax.text(head, layer, short, ha="center", va="center", fontsize=size, color=ink)
    ax.set_xlim(-0.6, widest - 0.4)
    ax.set_ylim(len(labels) - 0.4, -0.6)
    ax.set_aspect("equal", anchor="NW")
    ax.set_xlabel("head", fontsize=9)
    ax.set_ylabel("layer", fontsize=9)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0, labelsize=min(8.0, 20 * cell))
    ax.set_xticks(range(widest))
    ax.set_yticks(range(len(labels)), [str(n) for n in range(len(labels))] if rows is None else rows)
    if title is not None:
        ax.set_title(title, fontsize=10, loc="left", pad=8, parse_math=False)
    if legend:
        shown = [kind for kind in kinds if any(kind in row for row in labels)]
        counts = {kind: sum(row.count(kind) for row in labels) for kind in shown}
        handles = [Patch(color=colours[kind], label=f"{kind} ({counts[kind]})") for kind in shown]
        ax.legend(
            handles=handles,
            loc="upper left",
            bbox_to_anchor=(1.01, 1.0),
            fontsize=8,
            frameon=False,
            borderaxespad=0,
        )
    return figure


def curves(
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    x_label: str,
    y_label: str,
    title: str | None = None,
) -> Figure:
    """A figure of several lines, name -> (x, y), each named at its right end.

    >>> figure = curves({"a": ([0.0, 1.0], [2.0, 3.0])}, x_label="x", y_label="y")
    >>> figure.axes[0].get_xlabel()
    'x'
    """
    if not lines or any(len(x) != len(y) or not len(x) for x, y in lines.values()):
        raise ShapeError("a line needs as many x as y, one point at least, and there must be a line.")
    figure = Figure(figsize=(6.4, 4.0), layout="constrained", dpi=120)
    FigureCanvasAgg(figure)
    ax = figure.add_subplot()
    colours = ("#0072b2", "#8c8c8c", "#d55e00", "#1b7837", "#5e3c99")
    for index, (name, (x, y)) in enumerate(lines.items()):
        colour, marker = colours[index % len(colours)], "os^Dv"[index % 5]
        ax.plot(x, y, color=colour, marker=marker, markersize=4, linewidth=1.6, label=name)
    ax.set_xlabel(x_label, fontsize=9)
    ax.set_ylabel(y_label, fontsize=9)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color="#e4e4e8", linewidth=0.8)
    ax.tick_params(labelsize=8)
    ax.legend(fontsize=8, frameon=False)
    if title is not None:
        ax.set_title(title, fontsize=10, loc="left", pad=8, parse_math=False)
    return figure
