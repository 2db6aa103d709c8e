"""Ratios that can be trusted: every case measured in turn, in one run, and written to one page.

A bench does four things:

    options = parse_options(__doc__)                       # --quick, --rounds, --no-write
    timings = interleaved({"ours": ours, "peer": peer}, rounds=options.rounds)
    table = RatioTable("A title", "peer", [Row("N 512", timings, Goal("ours", "peer", 1.05))])
    report("Attention", [table], options)                  # the terminal, and bench/results.md

The cases alternate, round by round, because a machine's speed drifts: a ratio is taken within each
round and its median reported, so that a slow minute slows both sides of it.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import multiprocessing
import os
import platform
import re
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from regard.allocation import keep_freed_memory

keep_freed_memory()  # as our command line and trainer do

RESULTS = Path(__file__).with_name("results.md")
THREADS = min(2, int(os.environ.get("OMP_NUM_THREADS", "2")))  # fewer where a busy machine asks for it
QUICK_ROUNDS = 3
PREFACE = """# Measured

Written by the scripts in this folder, each its own section. Times are medians over interleaved rounds, with
half the distance between the quartiles. A ratio is the median of the ratios within each round.
"""

Case = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds for one call of one case, one entry for each round."""

    seconds: tuple[float, ...]
    calls_per_round: int

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def fastest(self) -> float:
        return min(self.seconds)

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles: what the median is uncertain by, roughly."""
        if len(self.seconds) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return (high - low) / 2

    def over(self, other: Timing) -> float:
        """How many times the other's time this one takes: the median of the rounds' own ratios."""
        return statistics.median(a / b for a, b in zip(self.seconds, other.seconds, strict=True))

    def __str__(self) -> str:
        return f"{readable_seconds(self.median)} ± {100 * self.spread / self.median:.0f}%"


def interleaved(
    cases: Mapping[str, Case],
    rounds: int = 9,
    *,
    round_seconds: float = 0.1,
    warmup: int = 2,
    threads: int = THREADS,
    rest: float = 0.0,
) -> dict[str, Timing]:
    """Timings of all cases, measured in turn: one burst of calls each, round after round.

    A burst repeats its case until it takes about `round_seconds`, as found in the warm-up, so that
    the clock and the loop do not count. The order turns by one each round: no case always follows
    the same other one. The garbage collector rests while the clock runs. Where cases bring thread pools of
    their own, `rest` lets the threads of the one before stop waiting for work: they take a core meanwhile.
    """
    if not cases or rounds < 1 or warmup < 1:
        raise ValueError(f"need a case, a round and a warm-up. Got {len(cases)}, {rounds}, {warmup}.")
    threads_before, collecting = torch.get_num_threads(), gc.isenabled()
    torch.set_num_threads(threads)
    try:
        calls = {}
        for name, case in cases.items():
            once = min(_burst(case, 1) for _ in range(warmup))
            calls[name] = max(1, round(round_seconds / max(once, 1e-9)))
        seconds: dict[str, list[float]] = {name: [] for name in cases}
        names = list(cases)
        for turn in range(rounds):
            first = turn % len(names)
            gc.collect()
            gc.disable()
            for name in names[first:] + names[:first]:
                time.sleep(rest)
                seconds[name].append(_burst(cases[name], calls[name]))
            gc.enable()
    finally:
        torch.set_num_threads(threads_before)
        (gc.enable if collecting else gc.disable)()
    return {name: Timing(tuple(seconds[name]), calls[name]) for name in names}


def _burst(case: Case, calls: int) -> float:
    """Seconds for one call, as the mean over `calls` in a row."""
    start = time.perf_counter()
    for _ in range(calls):
        case()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / calls


def available_bytes() -> int:
    """Memory that can still be had; 8 GiB where the system does not tell."""
    facts = Path("/proc/meminfo")
    if not facts.exists():
        return 8 << 30
    lines = dict(line.split(":", 1) for line in facts.read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024


class Child:
    """A case in a process of its own, for libraries that would slow each other down in one.

    Each brings its own thread pool, whose threads wait for work at full speed. `build` must be a function at
    the top of a module.
    """

    def __init__(self, build: Callable[..., Case], *args: object) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, build, args), daemon=True)
        self._process.start()
        other.close()
        self._wait()

    def __call__(self) -> None:
        self._pipe.send(None)
        self._wait()

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join()

    def _wait(self) -> None:
        try:
            self._pipe.recv()
        except EOFError:
            self._process.join()
            raise RuntimeError(f"a measured process ended, exit code {self._process.exitcode}") from None


def _serve(pipe: Connection, build: Callable[..., Case], args: tuple[object, ...]) -> None:
    torch.set_num_threads(THREADS)
    case = build(*args)
    pipe.send(None)
    gc.collect()
    gc.disable()
    while True:
        try:
            pipe.recv()
        except EOFError:
            return
        case()
        pipe.send(None)


def peak_memory(build: Callable[..., Case], *args: object) -> int:
    """Bytes by which the work that `build(*args)` returns raises the peak of a fresh process.

    `build` must be a function at the top of a module, as it runs in a child. What it allocates is not
    counted: only what its result adds when called. Call the library on something tiny in `build`, or
    the code it loads at first use is counted too.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_measure_peak, args=(sender, build, args))
    child.start()
    sender.close()
    try:
        peak: int = receiver.recv()
    except EOFError:
        child.join()
        raise RuntimeError(f"the measured process ended early, with exit code {child.exitcode}") from None
    child.join()
    return peak


def _measure_peak(sender: Connection, build: Callable[..., Case], args: tuple[object, ...]) -> None:
    torch.set_num_threads(THREADS)
    work = build(*args)
    gc.collect()
    status = Path("/proc/self/status")
    if not status.exists():  # not Linux: the peak of the whole life, so building counts where it is higher
        unit = 1 if sys.platform == "darwin" else 1024
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        work()
        sender.send((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * unit)
        return
    with contextlib.suppress(AttributeError):  # what building has freed is not there to be used again
        ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far: building may have been higher
    before = _status_bytes(status, "VmRSS")
    work()
    sender.send(max(0, _status_bytes(status, "VmHWM") - before))


def _status_bytes(status: Path, field: str) -> int:
    found = re.search(rf"^{field}:\s*(\d+) kB$", status.read_text(), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"{status} does not report {field}")
    return int(found[1]) * 1024


@dataclass(frozen=True, slots=True)
class Goal:
    """`case` should take at most `at_most` times what `peer` takes."""

    case: str
    peer: str
    at_most: float

    def verdict(self, timings: Mapping[str, Timing]) -> str:
        ratio = timings[self.case].over(timings[self.peer])
        word = "met" if ratio <= self.at_most else "missed"
        return f"{word}: {ratio:.2f} (goal {self.at_most:.2f})"


@dataclass(frozen=True, slots=True)
class Row:
    """One setting, all its cases, and where they ought to be."""

    setting: str
    timings: Mapping[str, Timing]
    goal: Goal | None = None


@dataclass(frozen=True, slots=True)
class RatioTable:
    """Times of every case and their ratios to `baseline`, one row for each setting."""

    title: str
    baseline: str
    rows: Sequence[Row]
    note: str = ""

    def cells(self) -> list[list[str]]:
        """The header, then the rows; a case that a row did not measure is a dash."""
        names = list(dict.fromkeys(name for row in self.rows for name in row.timings))
        names.sort(key=lambda name: name != self.baseline)
        goals = any(row.goal for row in self.rows)
        lines = [["setting", *names, *(["goal"] if goals else [])]]
        for row in self.rows:
            line = [row.setting, *(self._cell(name, row) for name in names)]
            if goals:
                line.append(row.goal.verdict(row.timings) if row.goal else "-")
            lines.append(line)
        return lines

    def _cell(self, name: str, row: Row) -> str:
        timing = row.timings.get(name)
        if timing is None:
            return "-"
        base = row.timings.get(self.baseline)
        if base is None or name == self.baseline:
            return str(timing)
        return f"{timing.over(base):.2f} × ({timing})"


@dataclass(frozen=True, slots=True)
class PlainTable:
    """Any other table, such as of memory: its cells are text already, the header first."""

    title: str
    lines: Sequence[Sequence[str]]
    note: str = ""

    def cells(self) -> list[list[str]]:
        return [list(line) for line in self.lines]


@dataclass(frozen=True, slots=True)
class Options:
    """What every bench may be told on its command line."""

    quick: bool
    write: bool
    rounds: int
    longest: int = sys.maxsize

    def lengths(self, wanted: Sequence[int]) -> list[int]:
        """Those of the lengths that are not to be left out."""
        return [length for length in wanted if length <= self.longest]


def parse_options(description: str | None) -> Options:
    """--quick (tiny, never written), --rounds N, --longest N, --no-write."""
    parser = argparse.ArgumentParser(description=(description or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes, few rounds; prints, never writes")
    parser.add_argument(
        "--rounds", type=int, default=9, help="interleaved rounds (9; at least 7 to be written)"
    )
    parser.add_argument(
        "--longest", type=int, default=sys.maxsize, help="leave out longer inputs, where a bench has several"
    )
    parser.add_argument("--no-write", action="store_true", help="leave bench/results.md alone")
    given = parser.parse_args()
    rounds = QUICK_ROUNDS if given.quick else given.rounds
    return Options(given.quick, not given.quick and not given.no_write and rounds >= 7, rounds, given.longest)


def report(heading: str, tables: Sequence[RatioTable | PlainTable], options: Options, note: str = "") -> None:
    """Print the tables, and put them under `heading` in bench/results.md where the options allow it."""
    console = Console()
    for table in tables:
        header, *lines = table.cells()
        printed = Table(title=table.title, caption=table.note or None)
        for index, word in enumerate(header):
            printed.add_column(word, justify="left" if index == 0 else "right")
        for line in lines:
            printed.add_row(*line)
        console.print(printed)
    console.print(machine_facts(), highlight=False)
    if options.write:
        write_section(heading, "\n\n".join([*([note] if note else []), *(as_markdown(t) for t in tables)]))
        console.print(f"written to {RESULTS.name}, section {heading!r}")


def as_markdown(table: RatioTable | PlainTable) -> str:
    """The table as Markdown, under a heading of its own."""
    header, *lines = table.cells()
    rule = ["---"] + ["---:"] * (len(header) - 1)
    rows = [
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in [header, rule, *lines]
    ]
    return "\n".join([f"### {table.title}", "", *rows, *(["", table.note] if table.note else [])])


def machine_facts(threads: int = THREADS) -> str:
    """What a ratio depends on: cores, threads, instruction set, versions."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return (
        f"{cores} cores, {threads} threads, {platform.machine()} "
        f"{torch.backends.cpu.get_cpu_capability()}{gpu}, "
        f"torch {torch.__version__}, Python {platform.python_version()}"
    )


def write_section(heading: str, body: str, path: Path = RESULTS) -> None:
    """Replace the section `heading` of the page at `path`, or add it at the end."""
    text = path.read_text() if path.exists() else PREFACE
    preface, *sections = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    new = f"## {heading}\n\n{machine_facts()}.\n\n{body.strip()}\n"
    places = [i for i, section in enumerate(sections) if section.split("\n", 1)[0] == f"## {heading}"]
    if places:
        sections[places[0]] = new
    else:
        sections.append(new)
    draft = path.with_suffix(".tmp")
    draft.write_text("\n\n".join(part.strip() for part in [preface, *sections]) + "\n")
    draft.replace(path)  # at once: a reader never sees half a page


def readable_seconds(seconds: float) -> str:
    """Three digits and a unit.

    >>> readable_seconds(0.01234)
    '12.3 ms'
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def readable_bytes(count: float) -> str:
    """Three digits or more, and a binary unit.

    >>> readable_bytes(3 * 1024**2), readable_bytes(1010 * 1024**2)
    ('3 MiB', '1010 MiB')
    """
    for unit, size in (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if count >= size:
            number = count / size
            return f"{number:.0f} {unit}" if number >= 100 else f"{number:.3g} {unit}"
    return f"{count:.0f} B"
