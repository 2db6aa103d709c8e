"""What the figures are made of: axes, checked weights, one map with its labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from torch import Tensor

from regard.errors import ShapeError

PALETTE = "viridis"  # even steps in lightness, and readable with every kind of colour blindness
DIVERGING = "PuOr_r"  # orange: more; purple: less
HIDDEN = "#e4e4e8"
CELL = 0.42  # inches
LARGEST_SIDE = 12.0  # inches
MOST_LABELS = 64  # beyond this the words would overlap, so positions are numbered instead
MOST_NUMBERS = 12  # a cell this large still has room for its weight in figures


def figure_and_axes(ax: Axes | None, wide: float, high: float) -> tuple[Figure, Axes]:
    """The axes given and their figure, or new ones of this size in inches."""
    if ax is not None:
        found = ax.get_figure(root=True)
        assert isinstance(found, Figure)
        return found, ax
    figure = Figure(figsize=(wide, high), layout="constrained", dpi=120)
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def checked_weights(
    weights: Tensor, rows: Sequence[str], cols: Sequence[str], visible: Tensor | None
) -> tuple[np.ndarray, np.ndarray]:
    """Weights and what is hidden of them, as arrays."""
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
    return values, np.zeros(values.shape, bool) if visible is None else ~visible.cpu().numpy()


def last_colour(values: np.ndarray, hidden: np.ndarray, largest: float | None) -> float:
    """The number that has the last colour."""
    return largest if largest is not None else float(np.abs(values[~hidden]).max(initial=0.0)) or 1.0


def draw_map(
    ax: Axes,
    values: np.ndarray,
    hidden: np.ndarray,
    rows: Sequence[str],
    cols: Sequence[str],
    top: float,
    diverging: bool,
    size: float = 9.0,
) -> AxesImage:
    ax.set_facecolor(HIDDEN)
    image = ax.imshow(
        np.ma.masked_array(values, hidden),
        cmap=DIVERGING if diverging else PALETTE,
        vmin=-top if diverging else 0.0,
        vmax=top,
        aspect="equal",
    )
    label_cells(ax, rows, cols, size)
    if max(values.shape) <= MOST_NUMBERS and size >= 9:
        write_numbers(ax, image, values, hidden)
    return image


def label_cells(ax: Axes, rows: Sequence[str], cols: Sequence[str], size: float) -> None:
    """Words beside the cells while they fit, and thin white lines between the cells."""
    ax.set_ylabel("query (looks)", fontsize=9)
    ax.set_xlabel("key (is looked at)", fontsize=9)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0, labelsize=size)
    if max(len(rows), len(cols)) > MOST_LABELS * size / 9:
        return
    # A word may hold a dollar sign, which matplotlib would read as a formula.
    ax.set_xticks(range(len(cols)), cols, rotation=45, ha="right", rotation_mode="anchor", parse_math=False)
    ax.set_yticks(range(len(rows)), rows, parse_math=False)
    ax.set_xticks(np.arange(1, len(cols)) - 0.5, minor=True)
    ax.set_yticks(np.arange(1, len(rows)) - 0.5, minor=True)
    ax.grid(which="minor", color="white", linewidth=1.0)
    ax.tick_params(which="minor", length=0)


def write_numbers(ax: Axes, image: AxesImage, values: np.ndarray, hidden: np.ndarray) -> None:
    for (row, col), value in np.ndenumerate(values):
        if not hidden[row, col]:
            ink = ink_on(image.cmap(image.norm(value)))
            said = f"{value if abs(value) >= 0.005 else 0.0:.2f}"  # never -0.00
            ax.text(col, row, said, ha="center", va="center", fontsize=7, color=ink)


def ink_on(colour: object) -> str:
    """Black or white, whichever is read more easily upon a colour."""
    red, green, blue = to_rgb(colour)  # type: ignore[arg-type]
    return "black" if 0.3 * red + 0.59 * green + 0.11 * blue > 0.55 else "white"
