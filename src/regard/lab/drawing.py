"""Figures of experiments: panels side by side, one look for all."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from torch import Tensor

from regard.drawing.figures import CHART_COLOURS, heat_map, line_style, new_figure, style_axes

COLOURS = CHART_COLOURS
GREY, INK = COLOURS[4], "#222222"
Number = float | int  # or a `Measurement`, which is a float
WIDTHS = {1: 6.0, 2: 5.0, 3: 4.4}  # of a panel among so many, in inches; 3.9 among more


def interval(number: Number) -> tuple[Number, Number]:
    """The ends of a measurement's interval; a plain number has no width."""
    return getattr(number, "low", number), getattr(number, "high", number)


class Panels:
    """A figure to which each call adds a panel; `arrange` puts them side by side."""

    def __init__(self) -> None:
        self.figure = new_figure(4.4, 3.6)
        self.panels: list[Axes] = []  # without the colour bars of maps

    def panel(self, title: str, x_label: str = "", y_label: str = "") -> Axes:
        """An empty panel."""
        ax = self.figure.add_subplot(label=title)
        style_axes(ax, title)
        self.panels.append(ax)
        ax.set_xlabel(x_label, fontsize=9)
        ax.set_ylabel(y_label, fontsize=9)
        return ax

    def lines(
        self,
        title: str,
        x: Sequence[Number],
        lines: Mapping[str, Sequence[Number]],
        x_label: str,
        y_label: str,
        *,
        log: str = "",
    ) -> Axes:
        """A line with its intervals for each name; `log` names axes: "x" is ticked at `x`."""
        ax = self.panel(title, x_label, y_label)
        for index, (name, numbers) in enumerate(lines.items()):
            self.line(x, numbers, name, index)
        if "x" in log:
            ax.set_xscale("log", base=2)
            ax.set_xticks(x, [f"{tick:g}" for tick in x])
        if "y" in log:
            ax.set_yscale("log")
        return ax

    def line(self, x: Sequence[Number], numbers: Sequence[Number], label: str, index: int) -> None:
        """A line with its intervals in the last panel, in the colour of that number."""
        ax = self.panels[-1]
        ax.plot(x, numbers, **line_style(index), label=label)
        lows, highs = zip(*map(interval, numbers), strict=True)
        if lows != highs:
            ax.fill_between(x, lows, highs, color=_colour(index), alpha=0.15, linewidth=0)

    def predicted(self, x: Sequence[Number], y: Sequence[Number], label: str = "_", index: int = 0) -> None:
        """A dashed line in the last panel, coloured as its line of that number; the legend omits _label."""
        self.panels[-1].plot(x, y, color=_colour(index), linestyle="--", linewidth=1.2, label=label)

    def losses(self, title: str, losses: Mapping[str, Sequence[Number]], y_label: str = "loss") -> None:
        """Losses of trainings, averaged over a twenty-fifth of their steps."""
        n_step = len(next(iter(losses.values())))
        window = max(1, n_step // 25)
        steps = range(0, n_step - window + 1, window)
        means = {
            name: [sum(values[step : step + window]) / window for step in steps]
            for name, values in losses.items()
        }
        self.lines(title, steps, means, "step", y_label).set_ylim(bottom=0)

    def bars(self, title: str, bars: Mapping[str, Number], y_label: str) -> None:
        """One bar for each name, with its interval and its number above it."""
        colours = [_colour(index) for index in range(len(bars))]
        ax = self.panel(title, "", y_label)
        _bars(ax, range(len(bars)), list(bars.values()), color=colours, width=0.65)
        ax.set_xticks(range(len(bars)), list(bars), fontsize=8)
        ax.margins(y=0.15)

    def grouped_bars(
        self, title: str, names: Sequence[str], groups: Mapping[str, Sequence[Number]], y_label: str
    ) -> None:
        """For each name a bar of every group, beside each other."""
        ax, wide = self.panel(title, "", y_label), 0.8 / len(groups)
        for index, (label, numbers) in enumerate(groups.items()):
            places = [place + wide * (index - (len(groups) - 1) / 2) for place in range(len(names))]
            _bars(ax, places, numbers, color=_colour(index), width=0.92 * wide, label=label)
        ax.set_xticks(range(len(names)), names, fontsize=8)

    def heat_map(self, title: str, weights: Tensor, tokens: Sequence[str], **options: Any) -> Axes:
        """The weights of one head, with the options of `regard.drawing.figures.heat_map`."""
        ax = self.panel(title)
        ax.grid(False)
        heat_map(weights, tokens, tokens, ax=ax, **options)
        return ax

    def level(self, height: float, words: str) -> None:
        """A dotted line across the last panel, with its words above it."""
        ax = self.panels[-1]
        ax.axhline(height, color=GREY, linestyle=":", linewidth=1)
        place: dict[str, Any] = {"textcoords": "offset points", "xycoords": ("axes fraction", "data")}
        paper = {"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.5}
        ax.annotate(words, (0, height), xytext=(2, 2), fontsize=7, bbox=paper, **place)

    def chance(self, share: float, words: str = "chance") -> None:
        """The share that guessing gives, in a last panel of shares from 0 to 1."""
        self.level(share, words)
        self.panels[-1].set_ylim(0, 1.05)

    def arrange(self) -> None:
        """Put the panels side by side, with a legend where its names are not those of the panel before."""
        n_panel, shown = len(self.panels), list[str]()
        self.figure.set_size_inches(WIDTHS.get(n_panel, 3.9) * n_panel, 3.6)
        grid = self.figure.add_gridspec(1, max(1, n_panel))
        for place, ax in enumerate(self.panels):
            ax.set_subplotspec(grid[0, place])
            names = ax.get_legend_handles_labels()[1]
            if names and names != shown:
                ax.legend(fontsize=8, frameon=False)
                shown = names

    def png(self) -> bytes:
        """The figure as a file's bytes."""
        buffer = io.BytesIO()
        self.figure.savefig(buffer, format="png")
        return buffer.getvalue()


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def _bars(ax: Axes, places: Sequence[Number], numbers: Sequence[Number], **style: Any) -> None:
    ax.bar(places, numbers, **style)
    above: dict[str, Any] = {"xytext": (0, 3), "textcoords": "offset points", "ha": "center", "fontsize": 7}
    for place, number in zip(places, numbers, strict=True):
        low, high = interval(number)
        if low != high:
            ax.plot([place, place], [low, high], color=INK, linewidth=1.2)
        ax.annotate(f"{number:.3g}", (place, max(number, high)), **above)
