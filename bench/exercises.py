"""How well the exercises tell right from wrong: mistakes caught and named, right variants refused, mutations.

    python bench/exercises.py [ID ...] [--seeds 3] [--quick] [--times] [--costs] [--rows FILE] [--write]

For each exercise: its known mistakes (caught, and named where values show them), pairs of mistakes (named),
its right variants (refused), and every one-edit mutation of each right variant (flip an operator, a constant,
an axis, drop a term). A mutation that passes is listed with its reason: it is still right, or a hole.

--times measures the command itself: one failing answer of each exercise, from a cold start, and fifty files
in one call. --costs prints one wrong answer against `import torch`, and a hundred answers of five exercises,
and nothing else. --rows keeps what was measured, so that a long run can be made in parts; --write puts all
of it into bench/results.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from mutations import Mutation, mutations
from timing import write_section

from regard.checking.author import outcomes_of
from regard.checking.catalogue import ours, pick
from regard.checking.child.messages import Failure, Outcome
from regard.checking.naming import Named, Space, best_verdict, diagnosis, plain_answer
from regard.checking.plan import Plan
from regard.checking.runner import Runner
from regard.checking.spec import Exercise, Mistake

MOST_MUTATIONS = 60  # of one right variant
MOST_PAIRS_TRIED = 12
TURNS = 5
FIVE = ("masked-softmax", "multi-head", "rnn-step", "lstm-step", "dot-product-attention")
WRONG = "import torch\n\ndef masked_softmax(X, valid_lens=None):\n    return torch.softmax(X, -1)\n"

# exercise, survivor -> why the mutation is still a right answer
EXPLAINED: tuple[tuple[str, str, str], ...] = (
    ("multi-head-self", "False becomes True", "the layer has the bias that ours has"),
    ("", "False becomes True", "a bias that nobody asked for, which is set to zero"),
    ("linear", "True becomes False", "an axis of 1 that broadcasting adds anyway"),
    ("linear", "1e-06", "less than rounding"),
    ("additive|encoder", "0.0 becomes 1.0", "all visible scores are shifted alike, which softmax undoes"),
    ("additive", "0.1 becomes 1.1", "a default value that every call overrides"),
    ("argmax", "softmax weight: line 4", "a positive factor leaves the order of the scores as it is"),
    ("argmax", "a loop: line 4", "a first guess that the first key replaces"),
    ("argmax|beam", ">= becomes >|> becomes >=", "it matters for ties alone, which the task excludes"),
    (
        "beam",
        "dictionaries",
        "finished sequences are extended too: the results score less, and only take places",
    ),
    ("beam", "line 23|line 10", "which sequences have a place in the beam at the end is left open"),
    ("greedy", "left term dropped", "the start token is not returned: a declared convention"),
    ("masked-softmax", "exponentials", "an empty row is NaN: a declared convention"),
    ("masked-softmax", "line 10", "an empty row is a slice of no numbers, filled or not"),
    ("mha-step", "line 12", "an axis of 1 that the next line folds away"),
    ("moments", "line 6", "another form of the scale: a declared convention"),
    ("multi-head-lengths", "line 27", "a mask that this exercise never gives"),
    ("multi-head-mask", "line 27", "the weights returned beside the output, which are not asked for"),
    ("multi-head-self", "line 8", "no heads at all, of which the task does not speak"),
    ("multi-head-self", "line 29", "the maps of one head after the other: a declared convention"),
    ("padded-loss", "min|line 10: 1 becomes 0", "a batch of padding alone is NaN: a declared convention"),
    ("positions", "2 becomes 1", "sines, then cosines: a declared convention"),
    ("positions", "numpy", "both columns of a pair hold the same angle"),
    ("seq2seq", "2 becomes 1", "one query: the new axis is the same in both places"),
    ("", "0 becomes -1|1 becomes 0", "the first and the last are one: a vector's axis, or an axis of 1"),
)


@dataclass
class Row:
    """The counts of one exercise, over all seeds."""

    id: str
    mistakes: int = 0
    caught: int = 0
    visible: int = 0
    named: int = 0
    pairs: int = 0
    pairs_named: int = 0
    right: int = 0
    refused: int = 0
    mutants: int = 0
    killed: int = 0
    seconds: float = 0.0
    survivors: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def measure(exercise: Exercise, runner: Runner, seeds: list[int], with_mutations: bool) -> Row:
    """Every known version of the exercise, checked as a student's answer would be."""
    row = Row(exercise.id)
    began = time.perf_counter()
    for seed in seeds:
        space = Space(Plan(exercise, seed))
        _right(space.plan, runner, row)
        _mistakes(space, row)
        if seed == seeds[0]:
            _pairs(space, row)
    if with_mutations:
        _mutants(exercise, runner, seeds[0], row)
    row.seconds = time.perf_counter() - began
    return row


def _right(plan: Plan, runner: Runner, row: Row) -> None:
    exercise = plan.exercise
    for name, source in zip(exercise.variants.values(), exercise.right, strict=True):
        result = runner.run(plain_answer(exercise, source), plan.orders)
        row.right += 1
        _, verdict = best_verdict(plan, result.runs)
        if verdict.failed:
            row.refused += 1
            row.notes.append(f"refused: {name!r} ({', '.join(sorted(verdict.failed))})")


def _mistakes(space: Space, row: Row) -> None:
    """Each mistake whose numbers some call shows; of twins, either name will do."""
    for mistake in space.mistakes:
        known = _known(space, mistake)
        if known is None:
            continue
        row.mistakes += 1
        row.caught += 1
        row.visible += 1
        right = bool(known) and known[0].certain
        row.named += right
        if not right:
            row.notes.append(f"not named: {mistake.name!r}")


def _pairs(space: Space, row: Row) -> None:
    """Two mistakes at once, that do not amount to one of them or to a right answer."""
    pairs = [
        pair
        for pair in itertools.combinations(space.mistakes, 2)
        if not set(pair[0].choices) & set(pair[1].choices)
    ]
    for pair in pairs[:: max(1, len(pairs) // MOST_PAIRS_TRIED)]:
        known = _known(space, *pair)
        if known is not None:
            row.pairs += 1
            # One of the two may hide the other: then naming it alone is all that can be said.
            made = {choice for mistake in pair for choice in mistake.choices.items()}
            told = (
                {choice for mistake in known[0].mistakes for choice in mistake.choices.items()}
                if known
                else set()
            )
            row.pairs_named += bool(told) and told <= made


def _known(space: Space, *mistakes: Mistake) -> tuple[Named, ...] | None:
    """The names that an answer with these mistakes is given; None where no call shows them."""
    outcomes = outcomes_of(space, *mistakes)
    choices, verdict = best_verdict(space.plan, outcomes)
    if not any(check.difference is not None for check in verdict.checks):
        return None
    return diagnosis(space, outcomes, choices, verdict).named


def _mutants(exercise: Exercise, runner: Runner, seed: int, row: Row) -> None:
    plan = Plan(exercise, seed)
    for name, source in zip(exercise.variants.values(), exercise.right, strict=True):
        mutants: list[Mutation] = mutations(source)[:MOST_MUTATIONS]
        for mutant in mutants:
            result = runner.run(plain_answer(exercise, mutant.source), plan.orders)
            row.mutants += 1
            loaded = result.loaded
            dead = loaded is None or bool(loaded.died or loaded.missing)
            nothing = {run.id: Outcome(error=Failure("not run")) for run in plan.runs}
            if dead or best_verdict(plan, {**nothing, **result.runs})[1].failed:
                row.killed += 1
            else:
                row.survivors.append(f"{name}: {mutant.what}")


def explained(survivor: str, id: str) -> str:
    """Why a mutation that passes is no wrong answer; empty where nobody has said so."""
    for where, pattern, reason in EXPLAINED:
        if re.search(where, id) and re.search(pattern, survivor):
            return reason
    return ""


def times(exercises: list[Exercise]) -> dict[str, tuple[float, float]]:
    """Seconds of `regard check`, started anew, for one wrong answer of each exercise and for fifty files.

    By the clock, and of work on all cores: the second depends less on what else the machine does.
    """
    found = {}
    answers = [
        (exercise, source)
        for exercise in exercises
        for source in (mutations(exercise.right[0])[0].source, exercise.right[0])
    ]
    with tempfile.TemporaryDirectory() as folder:

        def written(number: int) -> str:
            exercise, source = answers[number % len(answers)]
            # A folder of its own, because a file named as its exercise is taken for an answer to it.
            path = Path(folder, str(number), f"{exercise.id.replace('-', '_')}.py")
            path.parent.mkdir(exist_ok=True)
            path.write_text(source)
            return str(path)

        for number, exercise in enumerate(exercises):
            # An answer may bring parts that answer other exercises: it is asked for this one alone.
            found[exercise.id] = _seconds([written(2 * number)], folder, "--exercise", exercise.id)
            print(f"- {exercise.id}: {shown(found[exercise.id])}", flush=True)
        found["fifty files"] = _seconds([written(number) for number in range(50)], folder)
        print(f"- fifty files: {shown(found['fifty files'])}", flush=True)
    return found


def costs() -> None:
    """One wrong answer against `import torch`, in turns; a hundred answers of five exercises."""
    exercises = [pick(ours(), id) for id in FIVE]
    sources = [
        (exercise, source)
        for exercise in exercises
        for source in (
            *exercise.right,
            *(mutation.source for source in exercise.right for mutation in mutations(source)[:8]),
        )
    ]
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for number in range(100):
            exercise, source = sources[number % len(sources)]
            path = Path(folder, str(number), f"{exercise.id.replace('-', '_')}.py")
            path.parent.mkdir()
            path.write_text(source)
            files.append(str(path))
        wrong = Path(folder, "masked_softmax.py")
        wrong.write_text(WRONG)
        torch = [sys.executable, "-c", "import torch"]
        turns = [(_measured(torch)[:2], _seconds([str(wrong)], folder)) for _ in range(TURNS)]
        baseline, check = (
            [min(column) for column in zip(*side, strict=True)] for side in zip(*turns, strict=True)
        )
        clock, work = (ours / theirs for ours, theirs in zip(check, baseline, strict=True))
        print(f"- import torch: {shown(baseline)}; one wrong answer: {shown(check)}")
        print(
            f"- their ratio: {clock:.2f} by the clock (goal 1.5), {work:.2f} of work (goal 2.0)", flush=True
        )
        hundred = [seconds / 100 for seconds in _seconds(files, folder)]
        print(
            f"- each of a hundred answers of five exercises: {hundred[0]:.2f} s ({hundred[1]:.2f} s of work)"
        )


def _seconds(files: list[str], folder: str, *options: str) -> tuple[float, float]:
    command = [sys.executable, "-m", "regard", "check", *files, *options, "--json"]
    took, work, printed = _measured(command, XDG_STATE_HOME=folder)
    n_result = len(json.loads(printed))
    if n_result < len(files):  # a file may answer several exercises
        raise SystemExit(f"{len(files)} files gave {n_result} results.")
    return took, work


def _measured(command: list[str], **environment: str) -> tuple[float, float, str]:
    """Seconds by the clock, seconds of work on all cores, and what was printed."""
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True)
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def shown(seconds: Sequence[float]) -> str:
    """Seconds by the clock, and of work."""
    return f"{seconds[0]:.1f} s ({seconds[1]:.1f} s of work)"


HEADS = ("exercise", "caught", "named", "pairs named", "refused", "mutations caught", "one check")
COUNTS = ("caught mistakes", "named visible", "pairs_named pairs", "refused right", "killed mutants")


def line(row: Row, seconds: dict[str, Sequence[float]]) -> str:
    """A row of the table."""
    cells = ["/".join(str(getattr(row, name)) for name in pair.split()) for pair in COUNTS]
    took = shown(seconds[row.id]) if row.id in seconds else "-"
    return f"| {' | '.join([row.id, *cells, took])} |"


def body(rows: list[Row], seconds: dict[str, Sequence[float]]) -> str:
    """The section of bench/results.md."""
    totals = ["/".join(str(sum(getattr(r, n) for r in rows)) for n in pair.split()) for pair in COUNTS]
    slowest = shown(max((tuple(seconds[row.id]) for row in rows if row.id in seconds), default=(0.0, 0.0)))
    fifty = f", fifty files in one call {shown(seconds['fifty files'])}" if "fifty files" in seconds else ""
    lines = [
        "Known mistakes caught; those that values show named; pairs of two named; right variants refused;",
        "one-edit mutations of the right variants caught; one failing answer checked from a cold start.",
        *([f"The slowest check took {slowest}{fifty}."] if seconds else []),
        "",
        f"| {' | '.join(HEADS)} |",
        "| --- |" + " ---: |" * (len(HEADS) - 1),
        *(line(row, seconds) for row in rows),
        f"| all | {' | '.join(totals)} | {slowest} |",
        "",
        "Mutations that pass, and why they are still right:",
        "",
    ]
    reasons: dict[str, list[str]] = {}
    for row in rows:
        for survivor in row.survivors:
            reasons.setdefault(explained(survivor, row.id) or "not explained", []).append(row.id)
    for reason, ids in sorted(reasons.items(), key=lambda item: -len(item[1])):
        where = ", ".join(f"{id} {ids.count(id)}" for id in dict.fromkeys(ids))
        lines.append(f"- {len(ids)}: {reason} ({where}).")
    lines += ["", *(f"- {row.id}: {note}" for row in rows for note in row.notes)]
    return "\n".join(lines)


def main() -> None:
    """Print a row for each exercise, then what was missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ids", nargs="*", metavar="ID")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one seed, no mutations")
    parser.add_argument("--times", action="store_true", help="measure the command's time too")
    parser.add_argument(
        "--costs", action="store_true", help="one check against `import torch`, and a hundred"
    )
    parser.add_argument("--rows", type=Path, help="keep rows here, and do not measure those that are there")
    parser.add_argument("--write", action="store_true", help="write bench/results.md")
    options = parser.parse_args()
    if options.costs:
        costs()
        return
    exercises = ours()
    chosen = [pick(exercises, id) for id in options.ids] or list(exercises.values())
    seeds = list(range(1, 2 if options.quick else 1 + options.seeds))
    kept: dict[str, Any] = {"rows": {}, "seconds": {}}
    if options.rows is not None and options.rows.is_file():
        kept = json.loads(options.rows.read_text())
    print(f"| {' | '.join(HEADS)} |\n|" + " --- |" * len(HEADS), flush=True)
    with Runner(1) as runner:
        for exercise in chosen:
            if exercise.id not in kept["rows"]:
                row = measure(exercise, runner, seeds, not options.quick)
                kept["rows"][exercise.id] = asdict(row)
                if options.rows is not None:
                    options.rows.write_text(json.dumps(kept))
            print(line(Row(**kept["rows"][exercise.id]), kept["seconds"]), flush=True)
    if options.times:
        kept["seconds"] |= times(chosen)
        if options.rows is not None:
            options.rows.write_text(json.dumps(kept))
    rows = [Row(**kept["rows"][exercise.id]) for exercise in chosen]
    for row in rows:
        for note in row.notes:
            print(f"- {row.id}: {note}")
        for survivor in row.survivors:
            print(f"- {row.id}: survives: {survivor} [{explained(survivor, row.id) or 'NOT EXPLAINED'}]")
    if options.write:
        write_section("Exercises", body(rows, kept["seconds"]))


if __name__ == "__main__":
    main()
