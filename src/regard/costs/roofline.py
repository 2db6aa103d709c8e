"""How fast this machine computes and reads, and which of the two each operation of a model waits for.

The roofline (Williams, Waterman and Patterson 2009): with I operations for each byte, no more than
min(peak, I * bandwidth) operations a second are possible.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from textwrap import fill
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from regard.costs.model import Cost, Row
from regard.drawing.figures import new_figure
from regard.errors import ArgumentError

COLOURS = {"decode": "#d55e00", "prefill": "#0072b2", "train": "#1b7837"}
MARKERS = {"decode": "o", "prefill": "s", "train": "^"}


@dataclass(frozen=True, slots=True)
class Machine:
    """How fast a machine computes and reads: the best of several runs, which is what the hardware can do.

    Attributes:
        peak: Operations per second, in the product of two large matrices.
        bandwidth: Bytes per second, reading a matrix far larger than the caches.
        n_thread: How many threads PyTorch used.
        dtype: The type of the numbers, such as "float32".
        device: The device, such as "cpu".
    """

    peak: float
    bandwidth: float
    n_thread: int
    dtype: str
    device: str

    @property
    def ridge(self) -> float:
        """Operations per byte above which an operation waits for compute, not for memory."""
        return self.peak / self.bandwidth


@dataclass(frozen=True, slots=True)
class Placed:
    """An operation below the roof.

    Attributes:
        row: The operation.
        seconds: The least time that it can take.
        waits_for: What limits it, "memory" or "compute".
    """

    row: Row
    seconds: float
    waits_for: str


def measure_machine(
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    *,
    seconds: float = 1.0,
    n_byte: int = 1 << 28,
) -> Machine:
    """Measure the peak and the bandwidth of this machine with matrix products.

    Args:
        dtype: The type of the numbers.
        device: Where to measure.
        seconds: About how long each of the two measurements takes.
        n_byte: Size of the matrix that is read for the bandwidth; it must be far larger than the caches.

    Returns:
        What the fastest runs reached.

    Raises:
        ArgumentError: If `seconds` is not above 0 or `n_byte` is below 4096.
    """
    if seconds <= 0 or n_byte < 1 << 12:
        raise ArgumentError(f"seconds must be above 0 and n_byte at least 4096. Got {seconds} and {n_byte}.")
    device = torch.device(device)
    side, width = 1024, 4096
    left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    peak = 2 * side**3 / _fastest(lambda: left @ right, device, seconds)
    matrix = torch.ones(max(1, n_byte // (width * dtype.itemsize)), width, dtype=dtype, device=device)
    vector = torch.ones(width, dtype=dtype, device=device)
    bandwidth = matrix.nbytes / _fastest(lambda: matrix @ vector, device, seconds)
    number = str(dtype).removeprefix("torch.")
    return Machine(peak, bandwidth, torch.get_num_threads(), number, str(device))


def _fastest(run: Callable[[], object], device: torch.device, seconds: float) -> float:
    """The shortest of the runs that fit into `seconds`, three at least, after one to warm."""
    ends: list[float] = []
    while len(ends) < 4 or ends[-1] - ends[0] < seconds:
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        ends.append(time.perf_counter())
    return min(end - start for start, end in pairwise(ends))


def placed(cost: Cost, machine: Machine) -> list[Placed]:
    """Compute the least time that each operation can take on a machine, and what it waits for.

    Args:
        cost: The cost of a step.
        machine: The machine.

    Returns:
        One entry for each row of the cost, in the same order.
    """
    rows = []
    for row in cost.rows:
        reading, computing = row.n_byte / machine.bandwidth, row.n_operation / machine.peak
        rows.append(Placed(row, max(reading, computing), "memory" if reading >= computing else "compute"))
    return rows


def roofline_figure(costs: Sequence[Cost], machine: Machine, *, title: str | None = None) -> Figure:
    """Draw the roof of a machine and the operations of each phase, numbered as in the list beside it.

    Every operation stands where the roof limits it: speeds are those possible, not measured ones.

    Args:
        costs: The costs to draw, one for each phase.
        machine: The machine.
        title: The title. Default: threads and type of the measurement.

    Returns:
        The figure.

    Raises:
        ArgumentError: If there are no costs.
    """
    if not costs:
        raise ArgumentError("there is no cost to draw.")
    figure = new_figure(9.6, 4.8)
    ax = figure.subplots()
    drawn = {cost.phase: [row for row in cost.rows if row.n_operation] for cost in costs}
    intensities = [row.intensity for rows in drawn.values() for row in rows]
    low, high = min([*intensities, machine.ridge]) / 3, max([*intensities, machine.ridge]) * 3
    roof = [low, machine.ridge, high], [low * machine.bandwidth, machine.peak, machine.peak]
    ax.plot(*roof, color="#444444", linewidth=1.8)
    ax.fill_between(*roof, color="#f0f0f2", linewidth=0)
    ax.axvline(machine.ridge, color="#8c8c8c", linewidth=0.8, linestyle=":")
    number = 0
    for place, (phase, rows) in enumerate(drawn.items()):
        colour = COLOURS[phase]
        # Phases may fall on the same place: the first lies on top, the next are larger and stick out.
        mark: dict[str, Any] = {"color": colour, "markersize": 10 + 6 * place, "zorder": 5 - place}
        ink: dict[str, Any] = {"color": colour if place else "white", "fontsize": 7, "weight": "bold"}
        ax.plot([], [], " ", label=phase)  # a heading in the list
        for names, intensity in _grouped(rows).items():
            number += 1
            at = intensity, min(machine.peak, intensity * machine.bandwidth)
            entry = fill(f"{number}  {names} ({_short(intensity)})", 44, subsequent_indent="    ")
            ax.plot(*at, MARKERS[phase], markeredgecolor="white", label=entry, **mark)
            shift: dict[str, Any] = {"xytext": (0, -14 if place else 0), "textcoords": "offset points"}
            ax.annotate(f"{number}", at, ha="center", va="center", zorder=5 - place, **shift, **ink)
    figure.legend(loc="outside right upper", fontsize=7, frameon=False, markerscale=0.5)
    ax.set(xscale="log", xlim=(low, high), yscale="log", ylim=(low * machine.bandwidth, machine.peak * 2.2))
    ax.set_xlabel("intensity: operations for each byte moved", fontsize=9)
    ax.set_ylabel("operations a second that are possible", fontsize=9)
    ax.xaxis.set_major_formatter(lambda value, _: _short(value))
    ax.yaxis.set_major_formatter(lambda value, _: short_number(value))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_minor_formatter(NullFormatter())
    peak = f" peak {short_number(machine.peak)} operations/s"
    ax.text(machine.ridge, machine.peak * 1.15, peak, fontsize=8, va="bottom")
    middle = (low * machine.ridge) ** 0.5
    at, speed = (middle, middle * machine.bandwidth), short_number(machine.bandwidth, "B/s")
    ax.annotate(speed, at, (-8, 8), textcoords="offset points", fontsize=8, ha="right")
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=8)
    title = title or f"Roofline of this machine: {machine.n_thread} threads, {machine.dtype}"
    ax.set_title(title, fontsize=10, loc="left", pad=8, parse_math=False)
    return figure


def _grouped(rows: Sequence[Row]) -> Mapping[str, float]:
    """Names that stand at nearly the same place together, and that place."""
    groups: list[tuple[list[str], float]] = []
    for row in sorted(rows, key=lambda row: row.intensity):
        if groups and row.intensity < 1.08 * groups[-1][1]:
            groups[-1][0].append(row.name)
        else:
            groups.append(([row.name], row.intensity))
    return {", ".join(names): intensity for names, intensity in groups}


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def short_number(value: float | int, unit: str = "") -> str:
    """Write a number with three digits and an SI prefix.

    Example:
        >>> short_number(6_681_526_272), short_number(999), short_number(1500.0, "B/s")
        ('6.68 G', '999', '1.5 kB/s')
    """
    for factor, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {letter}{unit}"
    return f"{value:.3g} {unit}".strip()
