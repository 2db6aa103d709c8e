"""A head's weights as shaded blocks, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Bool, Float
from matplotlib import colormaps
from rich.cells import set_cell_size
from rich.text import Text
from torch import Tensor

from regard.drawing.figures import PALETTE

SHADES = "░▒▓█"
LABEL_WIDTH = 12


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
    row_labels, col_labels = ([_shortened(printable(word)) for word in words] for words in (rows, cols))
    tallest = max(map(len, col_labels))
    drawing = Text(no_wrap=True)
    for line in range(tallest):
        upright = (label.rjust(tallest)[line] for label in col_labels)
        drawing.append(" " * LABEL_WIDTH + "".join(set_cell_size(char, 2) for char in upright) + "\n", "dim")

    largest = float(weights.max()) or 1.0
    palette = colormaps[PALETTE]
    for row, label in enumerate(row_labels):
        drawing.append(set_cell_size(label, LABEL_WIDTH))
        for col in range(len(col_labels)):
            if not visible[row, col]:
                drawing.append("· ", "bright_black")
                continue
            share = float(weights[row, col]) / largest
            red, green, blue = (round(255 * part) for part in palette(share)[:3])
            shade = SHADES[min(len(SHADES) - 1, int(share * len(SHADES)))]
            drawing.append(
                shade * 2, f"rgb({red},{green},{blue}) on rgb({red // 2},{green // 2},{blue // 2})"
            )
        drawing.append("\n")
    steps = (f"{shade * 2} {step * largest / len(SHADES):.2f}+" for step, shade in enumerate(SHADES))
    return drawing.append(f"\nweight      {'  '.join(steps)}  · hidden\n", "dim")


def _shortened(word: str) -> str:
    return word if len(word) < LABEL_WIDTH else word[: LABEL_WIDTH - 2] + "…"
