"""Figures of experiments: axes side by side, one look for all."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from regard.drawing.figures import CHART_COLOURS, line_style
from regard.drawing.figures import panels as panels  # experiments draw on these
from regard.lab.spec import Measurement

COLOURS = CHART_COLOURS
GREY, INK = COLOURS[4], "#222222"

Number = Measurement | float | int
Place = TypeVar("Place", int, float)


def draw(
    ax: Axes,
    x: Sequence[float | int],
    y: Sequence[Number],
    label: str,
    index: int,
    *,
    dashed: bool = False,
) -> None:
    """A line with its intervals; dashed and without points where it is a prediction."""
    points = [_measured(point) for point in y]
    values, colour = [point.value for point in points], COLOURS[index % len(COLOURS)]
    if dashed:
        ax.plot(x, values, color=colour, linestyle="--", linewidth=1.2, label=label)
        return
    ax.plot(x, values, **line_style(index), label=label)
    lows, highs = [point.low for point in points], [point.high for point in points]
    if lows != highs:
        ax.fill_between(x, lows, highs, color=colour, alpha=0.15, linewidth=0)


def sweep(
    ax: Axes,
    x: Sequence[Place],
    names: Iterable[str],
    measure: Callable[[str, Place], Measurement],
) -> dict[str, list[Measurement]]:
    """What `measure(name, place)` finds at each place of `x`, drawn as a line for each name."""
    lines = {}
    for index, name in enumerate(names):
        lines[name] = [measure(name, place) for place in x]
        draw(ax, x, lines[name], name, index)
    return lines


def draw_losses(ax: Axes, losses: Sequence[float], label: str, index: int) -> None:
    """Losses of a training, averaged over a twenty-fifth of its steps."""
    window = max(1, len(losses) // 25)
    steps = range(0, len(losses) - window + 1, window)
    draw(ax, steps, [sum(losses[step : step + window]) / window for step in steps], label, index)
    ax.set_ylim(bottom=0)


def bars(ax: Axes, names: Sequence[str], values: Sequence[Number]) -> None:
    """One bar for each name, with its interval and its number above it."""
    points = [_measured(value) for value in values]
    colours = [COLOURS[index % len(COLOURS)] for index in range(len(names))]
    ax.bar(range(len(names)), [point.value for point in points], color=colours, width=0.65)
    for place, point in enumerate(points):
        _interval(ax, place, point)
        _number(ax, place, max(point.value, point.high), f"{point.value:.3g}")
    ax.set_xticks(range(len(names)), names, fontsize=8)
    ax.margins(y=0.15)


def grouped_bars(
    ax: Axes, names: Sequence[str], groups: Mapping[str, Sequence[Number]], *, numbers: bool = False
) -> None:
    """For each name a bar of every group, beside each other; with the number above where asked for."""
    wide = 0.8 / len(groups)
    for index, (label, values) in enumerate(groups.items()):
        points = [_measured(value) for value in values]
        places = [place + wide * (index - (len(groups) - 1) / 2) for place in range(len(names))]
        heights = [point.value for point in points]
        ax.bar(places, heights, width=0.92 * wide, color=COLOURS[index % len(COLOURS)], label=label)
        for place, point in zip(places, points, strict=True):
            _interval(ax, place, point)
            if numbers:
                _number(ax, place, point.value, f"{point.value:.2f}")
    ax.set_xticks(range(len(names)), names, fontsize=8)


def level(ax: Axes, height: float, words: str, x: float | int) -> None:
    """A dotted line across, with its words above it at `x`: chance, or another level to compare with."""
    ax.axhline(height, color=GREY, linestyle=":", linewidth=1)
    ax.annotate(words, (x, height), xytext=(0, 2), textcoords="offset points", fontsize=7)


def finish(
    ax: Axes,
    x_label: str,
    y_label: str,
    *,
    legend: bool = True,
    doublings: Sequence[int] | None = None,
    log_y: bool = False,
) -> None:
    """Labels, and the legend where it hides the least; with `doublings` x is logarithmic, ticked there."""
    ax.set_xlabel(x_label, fontsize=9)
    ax.set_ylabel(y_label, fontsize=9)
    if doublings is not None:
        ax.set_xscale("log", base=2)
        ax.set_xticks(doublings, [str(tick) for tick in doublings])
    if log_y:
        ax.set_yscale("log")
    if legend:
        ax.legend(fontsize=8, frameon=False)


def png(figure: Figure) -> bytes:
    """The figure as a file's bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _measured(value: Number) -> Measurement:
    return value if isinstance(value, Measurement) else Measurement.exact("", value)


def _interval(ax: Axes, x: float | int, point: Measurement) -> None:
    if point.low != point.high:
        ax.plot([x, x], [point.low, point.high], color=INK, linewidth=1.2)


def _number(ax: Axes, x: float | int, top: float, words: str) -> None:
    ax.annotate(words, (x, top), xytext=(0, 3), textcoords="offset points", ha="center", fontsize=8)
