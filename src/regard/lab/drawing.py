"""Figures of experiments: axes side by side, one look for all."""

from __future__ import annotations

import io
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from regard.lab.spec import Measurement

COLOURS = ("#0072b2", "#d55e00", "#1b7837", "#5e3c99", "#8c8c8c", "#e69f00")
MARKERS = "os^Dvx"


def panels(*titles: str, width: float = 4.4, height: float = 3.6) -> tuple[Figure, list[Axes]]:
    """A figure with one titled pair of axes for each title."""
    figure = Figure(figsize=(width * len(titles), height), layout="constrained", dpi=120)
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(1, len(titles), squeeze=False)[0])
    for ax, title in zip(axes, titles, strict=True):
        ax.set_title(title, fontsize=10, loc="left", pad=8, parse_math=False)
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(axis="y", color="#e4e4e8", linewidth=0.8)
        ax.set_axisbelow(True)
        ax.tick_params(labelsize=8)
    return figure, axes


def draw(
    ax: Axes,
    x: Sequence[float | int],
    y: Sequence[Measurement | float | int],
    label: str,
    index: int,
    *,
    dashed: bool = False,
) -> None:
    """A line with its intervals; dashed and without points where it is a prediction."""
    values = [each.value if isinstance(each, Measurement) else each for each in y]
    colour = COLOURS[index % len(COLOURS)]
    if dashed:
        ax.plot(x, values, color=colour, linestyle="--", linewidth=1.2, label=label)
        return
    marker = MARKERS[index % len(MARKERS)]
    ax.plot(x, values, color=colour, marker=marker, markersize=4, linewidth=1.5, label=label)
    lows = [each.low if isinstance(each, Measurement) else each for each in y]
    highs = [each.high if isinstance(each, Measurement) else each for each in y]
    if lows != highs:
        ax.fill_between(x, lows, highs, color=colour, alpha=0.15, linewidth=0)


def bars(
    ax: Axes, names: Sequence[str], values: Sequence[Measurement | float | int], *, log: bool = False
) -> None:
    """One bar for each name, with its interval and its number above it."""
    numbers = [each.value if isinstance(each, Measurement) else each for each in values]
    places = range(len(names))
    ax.bar(places, numbers, color=[COLOURS[index % len(COLOURS)] for index in places], width=0.65)
    for index, each in enumerate(values):
        top = numbers[index]
        if isinstance(each, Measurement) and each.low != each.high:
            ax.plot([index, index], [each.low, each.high], color="#222222", linewidth=1.2)
            top = max(top, each.high)
        ax.annotate(
            f"{numbers[index]:.3g}",
            (index, top),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            fontsize=8,
        )
    ax.set_xticks(places, names, fontsize=8)
    if log:
        ax.set_yscale("log")
    else:
        ax.margins(y=0.15)


def finish(ax: Axes, x_label: str, y_label: str, *, legend: bool = True) -> None:
    """Labels, and the legend where it hides the least."""
    ax.set_xlabel(x_label, fontsize=9)
    ax.set_ylabel(y_label, fontsize=9)
    if legend:
        ax.legend(fontsize=8, frameon=False)


def png(figure: Figure) -> bytes:
    """The figure as a file's bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
