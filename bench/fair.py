"""How often a right answer is refused for the numbers that were drawn: every right variant, many seeds.

    python bench/fair.py [--seeds 20] [--first 1] [--exercise ID ...] [--write]

Goal: none refused, and no name given to any of them.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from timing import write_section

from regard.checking.catalogue import ours
from regard.checking.check import Checker
from regard.checking.runner import Runner

MOST_WORKERS = 2


def measure(seeds: Iterable[int], ids: Iterable[str], runner: Runner) -> tuple[Counter[str], list[str]]:
    """Check the right variants of the exercises with each seed.

    Args:
        seeds: The seeds.
        ids: The exercises, by id.
        runner: Where the answers run.

    Returns:
        How many answers of each exercise were tried, and a line for each that was refused or named.
    """
    exercises = ours()
    tried: Counter[str] = Counter()
    refused = []
    for seed in seeds:
        for id in ids:
            folder = exercises[id].folder / "right"
            files = [str(folder / f"{name}.py") for name in exercises[id].variants]
            for result in Checker(exercises, runner, seed).check_files(files, id):
                tried[id] += 1
                names = [mistake.name for named in result.mistakes for mistake in named.mistakes]
                if not result.passed or names:
                    failed = "; ".join(check.name for check in result.checks if not check.passed)
                    told = f", called {'; '.join(names)}" if names else ""
                    refused.append(f"{id}, {Path(result.file).stem}, seed {seed}: {failed}{told}")
                    print(refused[-1], flush=True)
        print(f"seed {seed}: {sum(tried.values())} tried, {len(refused)} refused", flush=True)
    return tried, refused


def table(tried: Counter[str], refused: list[str]) -> str:
    """Return a row for each exercise, then one for all."""
    lines = ["| exercise | right answers refused |", "| --- | ---: |"]
    for id, count in tried.items():
        n_refused = sum(line.startswith(f"{id}, ") for line in refused)
        lines.append(f"| {id} | {n_refused}/{count} |")
    return "\n".join([*lines, f"| all (goal: 0) | {len(refused)}/{sum(tried.values())} |"])


def main() -> None:
    """Print the table, and each refusal as it is met."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20, help="how many")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--exercise", action="append", choices=sorted(ours()), help="this one alone")
    parser.add_argument("--write", action="store_true", help="write bench/results.md")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    with Runner(min(MOST_WORKERS, os.cpu_count() or 1)) as runner:
        torch.set_num_threads(1)  # the workers need the cores
        tried, refused = measure(seeds, options.exercise or ours(), runner)
    body = "\n\n".join([table(tried, refused), *refused])
    print(f"\n{body}")
    if options.write:
        write_section("Exercises: right answers refused", f"Seeds {seeds[0]} to {seeds[-1]}.\n\n{body}")


if __name__ == "__main__":
    main()
