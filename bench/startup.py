"""Commands from a cold start, against a bare interpreter and `import torch` in the same rounds.

By the clock, and seconds of work on all cores, which depend less on what else the machine does.
"""

from __future__ import annotations

import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from timing import PlainTable, parse_options, report

BARE, TORCH = "bare interpreter", "import torch"
LOOK, GENERATE = "look, until the link", "generate, first token"
MOST_BARE = 10.0  # bare interpreters, for a command that needs no torch
BEYOND_TORCH = {LOOK: 1.5, GENERATE: 0.5}  # seconds, for one that does
REGARD = ("-m", "regard")
LIGHT = ("exercises", "hint rope", "quiz --list", "families", "models")
CASES: dict[str, tuple[str, ...]] = {
    BARE: ("-c", ""),
    TORCH: ("-c", "import torch"),
    **{name: (*REGARD, *name.split()) for name in LIGHT},
    LOOK: (*REGARD, "look", "--no-browser", "--port", "0"),
    GENERATE: (*REGARD, *"generate --model pocket-gpt --max-new 1 hacker".split()),
}
# What an installed package has: its files compiled.
STATE = tempfile.TemporaryDirectory(prefix="state-")
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}


def seconds(name: str) -> tuple[float, float]:
    """By the clock and of work, until the command has ended, or has printed a link and been interrupted."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with subprocess.Popen(
        [sys.executable, *CASES[name]],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**ENVIRONMENT, "PYTHONUNBUFFERED": "1", "XDG_STATE_HOME": STATE.name},  # nobody's own progress
        text=True,
    ) as running:
        assert running.stdout is not None  # piped
        printed, took = "", None
        for line in running.stdout:
            printed += line
            if took is None and name == LOOK and "http://" in line:
                took = time.perf_counter() - began
                running.send_signal(signal.SIGINT)
    if took is None and (running.returncode or name == LOOK):
        raise SystemExit(f"{' '.join(CASES[name])} failed: {printed}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    work = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - began if took is None else took, work


def main() -> None:
    options = parse_options(__doc__)
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in CASES}
    for turn in range(1 + options.rounds):
        for name in CASES:
            both = seconds(name)
            if turn:  # not the first, which compiles our files, and reads all from the disk
                measured[name].append(both)

    def median(name: str, kind: int) -> float:
        return statistics.median(both[kind] for both in measured[name])

    def cells(name: str) -> list[str]:
        line = [name]
        for kind in (0, 1):
            took, bare, torch = (median(case, kind) for case in (name, BARE, TORCH))
            shown = f"{took:.2f} s"
            if name in LIGHT:
                verdict = "met" if took <= MOST_BARE * bare else "missed"
                shown += f", {took / bare:.1f} bare starts: {verdict} (goal {MOST_BARE:.0f})"
            elif name in BEYOND_TORCH:
                goal = BEYOND_TORCH[name]
                verdict = "met" if took <= torch + goal else "missed"
                shown += f", {took - torch:+.2f} s beyond torch: {verdict} (goal {goal})"
            line.append(shown)
        return line

    lines = [["command", "by the clock", "work"], *map(cells, CASES)]
    report("Start-up", [PlainTable("A cold start", lines)], options)


if __name__ == "__main__":
    main()
