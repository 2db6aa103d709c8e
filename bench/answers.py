"""What the checker makes of answers that were judged beforehand: caught, refused, accepted, named.

    python bench/answers.py [FOLDER ...] [--seed 1] [--list] [--rows FILE] [--write]

Without a folder: ../shared/answers beside this repository, and ours in bench/answers; one that is not
there is left out, with a word. bench/answers.tsv, or FOLDER.tsv beside another folder, has a row for each
file, by its name:

- exercise: what it answers.
- verdict, by the task's text: `right`; `wrong`; `free`, a convention that the task leaves open, or a row that
  sees nothing filled otherwise; `note`, right but for another device or dtype, which must pass with a note;
  `odd`, nothing that could be checked, such as a syntax error: must not pass.
- mistake: what a teacher would say.
- values: `yes` where returned numbers show it, what is returned and in which order too; `no: ...` where it is
  an exception, a shape, a gradient, chance, a device.
- name: a regular expression for what the checker may call it, whatever the case. Where two mistakes are made,
  one expression for each, with ` & ` between them.

An answer is named rightly when every name that the checker gives fits one of the expressions, and every
expression fits a name; in part when only the second fails, which counts as not named; wrongly when a name
fits none.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from timing import write_section

from regard.checking.catalogue import ours
from regard.checking.check import Checker
from regard.checking.runner import Runner

HERE = Path(__file__).parent
FOLDERS = (HERE.parents[1] / "shared" / "answers", HERE / "answers")
MOST_WORKERS = 2


@dataclass(frozen=True, slots=True)
class Judgement:
    """A row of answers.tsv."""

    file: str
    exercise: str
    verdict: str
    mistake: str
    values: str
    name: str

    @property
    def shown(self) -> bool:
        """Whether the mistake can be told by what is returned."""
        return self.verdict == "wrong" and self.values == "yes"


@dataclass(frozen=True, slots=True)
class Checked:
    """What the checker made of a file."""

    passed: bool
    names: tuple[str, ...]
    failed: str  # the first check that failed
    told: bool = True  # whether anything was said beside the checks


@dataclass(frozen=True, slots=True)
class Case:
    """A file's judgement and what became of it."""

    judgement: Judgement
    checked: Checked

    @property
    def naming(self) -> str:
        """`rightly`, `wrongly`, `in part` or `not`."""
        names = () if self.checked.passed else self.checked.names
        patterns = self.judgement.name.split(" & ")
        if not names:
            return "not"
        if not all(any(_fits(pattern, name) for pattern in patterns) for name in names):
            return "wrongly"
        complete = all(any(_fits(pattern, name) for name in names) for pattern in patterns)
        return "rightly" if complete else "in part"

    @property
    def miss(self) -> str:
        """What is wrong with what the checker said; empty where nothing is."""
        verdict, passed = self.judgement.verdict, self.checked.passed
        if verdict in ("right", "free", "note"):
            untold = f"{verdict}, and nothing is told" if verdict == "note" and not self.checked.told else ""
            return untold if passed else f"{verdict}, refused ({self.checked.failed})"
        if passed:
            return f"{verdict}, passed: {self.judgement.mistake}"
        if (
            verdict == "odd"
            or self.naming == "rightly"
            or (self.naming == "not" and not self.judgement.shown)
        ):
            return ""
        said = " and ".join(self.checked.names) or "nothing"
        naming = "not named" if self.naming == "not" else f"named {self.naming}"
        return f"{naming}: {self.judgement.mistake} (said: {said})"


def _fits(pattern: str, name: str) -> bool:
    return bool(pattern) and re.search(pattern, name, re.IGNORECASE) is not None


def judgements(folder: Path) -> dict[str, Judgement]:
    """The rows of the folder's table, by file: answers.tsv, unless one of its own lies beside it."""
    beside = folder.resolve().with_suffix(".tsv")
    with (beside if beside.is_file() else HERE / "answers.tsv").open(newline="") as lines:
        rows = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        return {row["file"]: Judgement(**row) for row in rows}


def checked(checker: Checker, folder: Path, group: Sequence[Judgement]) -> dict[str, Checked]:
    """Each file checked as a student's would be: the exercise is not told."""
    paths = [str(folder / judgement.file) for judgement in group]
    results = [result.as_json() for result in checker.check_files(paths)]
    outcomes = {}
    for judgement, path in zip(group, paths, strict=True):
        mine = [result for result in results if result["file"] == path]
        # A file may answer other exercises too; where it answers not even this one, all of it counts.
        mine = [result for result in mine if result["exercise"] == judgement.exercise] or mine
        failed = [check["name"] for result in mine for check in result["checks"] if not check["passed"]]
        names = [mistake["name"] for result in mine for mistake in result["mistakes"]]
        passed = bool(mine) and all(result["passed"] for result in mine)
        told = any(result["conventions"] for result in mine)
        outcomes[judgement.file] = Checked(passed, tuple(names), failed[0] if failed else "", told)
    return outcomes


def counts(cases: Iterable[Case]) -> dict[str, str]:
    """The counts of some answers, as `some/all`."""
    cases = list(cases)

    def share(verdict: str, passed: bool) -> str:
        of = [case for case in cases if case.judgement.verdict == verdict]
        return f"{sum(case.checked.passed == passed for case in of)}/{len(of)}"

    shown = [case.naming for case in cases if case.judgement.shown]
    others = [case.naming for case in cases if case.judgement.verdict == "wrong" and not case.judgement.shown]
    return {
        "wrong caught": share("wrong", False),
        "odd caught": share("odd", False),
        "right refused": share("right", False),
        "free accepted": share("free", True),
        "note accepted": share("note", True),
        "named rightly": f"{shown.count('rightly')}/{len(shown)}",
        "wrongly": f"{shown.count('wrongly')}/{len(shown)}",
        "in part": f"{shown.count('in part')}/{len(shown)}",
        "not": f"{shown.count('not')}/{len(shown)}",
        "no values: rightly": f"{others.count('rightly')}/{len(others)}",
        "no values: wrongly": f"{others.count('wrongly') + others.count('in part')}/{len(others)}",
    }


def table(cases: Sequence[Case]) -> str:
    """A row for each exercise, and their sum."""
    by_exercise: dict[str, list[Case]] = {}
    for case in cases:
        by_exercise.setdefault(case.judgement.exercise, []).append(case)
    rows = {exercise: counts(group) for exercise, group in sorted(by_exercise.items())}
    rows["all"] = counts(cases)
    heads = ["exercise", *rows["all"]]
    lines = [f"| {' | '.join(heads)} |", "| --- |" + " ---: |" * (len(heads) - 1)]
    for exercise, row in rows.items():
        cells = ["" if cell.endswith("/0") else cell for cell in row.values()]
        lines.append(f"| {' | '.join([exercise, *cells])} |")
    return "\n".join(lines)


def measure(folder: Path, options: argparse.Namespace, runner: Runner) -> list[Case]:
    """Every judged file of a folder, checked; what --rows has is not checked again."""
    known = judgements(folder)
    files = sorted(path.name for path in folder.iterdir() if path.suffix in (".py", ".ipynb"))
    for file in files:
        if file not in known:
            print(f"- not judged, left out: {file}")
    kept: dict[str, dict[str, Checked]] = {}
    if options.rows is not None and options.rows.is_file():
        stored = json.loads(options.rows.read_text())
        kept = {
            name: {
                file: Checked(row["passed"], tuple(row["names"]), row["failed"], row["told"])
                for file, row in of.items()
            }
            for name, of in stored.items()
        }
    outcomes = kept.setdefault(str(folder.resolve()), {})
    chosen = [known[file] for file in files if file in known]
    missing: dict[str, list[Judgement]] = {}
    for judgement in chosen:
        if judgement.file not in outcomes:
            missing.setdefault(judgement.exercise, []).append(judgement)
    # One exercise after the other: its plan and its known mistakes are made once.
    checker = Checker(ours(), runner, options.seed)
    for group in missing.values():
        outcomes |= checked(checker, folder, group)
        if options.rows is not None:
            stored = {name: {file: asdict(row) for file, row in of.items()} for name, of in kept.items()}
            options.rows.write_text(json.dumps(stored, indent=1))
    return [Case(judgement, outcomes[judgement.file]) for judgement in chosen]


def main() -> None:
    """Print a table for each folder, with --list every miss too."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="name every miss")
    parser.add_argument("--rows", type=Path, help="keep rows here, and do not check those that are there")
    parser.add_argument("--write", action="store_true", help="write bench/results.md")
    options = parser.parse_args()
    folders = []
    for folder in options.folders or FOLDERS:
        if folder.is_dir():
            folders.append(folder)
        else:
            print(f"{os.path.relpath(folder)} is not there: nothing to check in it.")
    if not folders:
        return
    parts = []
    with Runner(min(MOST_WORKERS, os.cpu_count() or 1)) as runner:
        torch.set_num_threads(1)  # the workers need the cores
        for folder in folders:
            began = time.perf_counter()
            cases = measure(folder, options, runner)
            seconds = time.perf_counter() - began
            title = f"{folder.resolve().parent.name}/{folder.name}: {len(cases)} answers, seed {options.seed}"
            misses = [f"- {case.judgement.file}: {case.miss}" for case in cases if case.miss]
            parts.append(f"{title}.\n\n{table(cases)}\n\nMissed:\n\n" + "\n".join(misses or ["- nothing"]))
            print(f"\n{title}, {seconds:.0f} s\n\n{table(cases)}", flush=True)
            if options.list:
                print("", *misses, sep="\n", flush=True)
    if options.write:
        write_section("Exercises: answers", "\n\n".join(parts))


if __name__ == "__main__":
    main()
