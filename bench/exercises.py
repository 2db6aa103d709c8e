"""How well the exercises tell right from wrong: mistakes caught and named, right variants refused, mutations.

    python bench/exercises.py [ID ...] [--seeds 3] [--quick]

For each exercise: its known mistakes (caught, and named where values show them), pairs of mistakes (named),
its right variants (refused), and every one-edit mutation of each right variant (flip an operator, a constant,
an axis, drop a term). A mutation that passes is listed: it is either still right, or a hole.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass, field

os.environ.setdefault("OMP_NUM_THREADS", "1")

from regard.exercises.catalogue import ours, pick
from regard.exercises.mutations import Mutation, mutations
from regard.exercises.naming import Library, best_verdict, named, passing_runs, plain_answer
from regard.exercises.plan import Plan
from regard.exercises.runner import Runner
from regard.exercises.spec import Exercise

MOST_MUTATIONS = 60  # of one right variant
MOST_PAIRS_TRIED = 12
AT_ONCE = 6


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
        library = Library(Plan(exercise, seed), runner)
        _right(library, runner, row)
        _mistakes(library, row)
        if seed == seeds[0]:
            _pairs(library, row)
    if with_mutations:
        _mutants(exercise, runner, seeds[0], row)
    row.seconds = time.perf_counter() - began
    return row


def _right(library: Library, runner: Runner, row: Row) -> None:
    exercise, plan = library.plan.exercise, library.plan
    job = plan.job([plain_answer(exercise, right.source) for right in exercise.right])
    for right, result in zip(exercise.right, runner.run(job, patient=True), strict=True):
        row.right += 1
        _, verdict = best_verdict(plan, result["runs"])
        if verdict.failed:
            row.refused += 1
            row.notes.append(f"refused: {right.name!r} ({', '.join(sorted(verdict.failed))})")


def _mistakes(library: Library, row: Row) -> None:
    for known in library.singles():
        (mistake,) = known.mistakes
        row.mistakes += 1
        row.caught += bool(known.verdict.failed)
        if not known.verdict.failed:
            row.notes.append(f"not caught: {mistake.name!r}")
            continue
        if len(passing_runs(library.plan, known.outcomes, known.choices)) == len(library.value_runs):
            continue
        row.visible += 1
        guesses = named(library, known.outcomes, known.choices, known.verdict)
        right = bool(guesses) and guesses[0].certain and guesses[0].mistakes == (mistake,)
        row.named += right
        if not right:
            told = " and ".join(each.name for each in guesses[0].mistakes) if guesses else "nothing"
            row.notes.append(f"not named: {mistake.name!r} (told: {told})")


def _pairs(library: Library, row: Row) -> None:
    """Two mistakes at once, that do not amount to one of them or to a right answer."""
    some = library.pairs[:: max(1, len(library.pairs) // MOST_PAIRS_TRIED)]
    for known in library.known(some, library.value_runs):
        if not known.verdict.failed:
            continue
        guesses = named(library, known.outcomes, known.choices, known.verdict)
        row.pairs += 1
        told = set(guesses[0].mistakes) if guesses and guesses[0].certain else set()
        # One of the two may hide the other: then naming it alone is all that can be said.
        row.pairs_named += bool(told) and told <= set(known.mistakes)


def _mutants(exercise: Exercise, runner: Runner, seed: int, row: Row) -> None:
    plan = Plan(exercise, seed)
    for right in exercise.right:
        mutants: list[Mutation] = mutations(right.source)[:MOST_MUTATIONS]
        if not mutants:
            continue
        answers = [plain_answer(exercise, mutant.source) for mutant in mutants]
        # A few at a time: endless loops among them must not use up the time of the others.
        results = [
            result
            for first in range(0, len(answers), AT_ONCE)
            for result in runner.run(plan.job(answers[first : first + AT_ONCE]), patient=True)
        ]
        for mutant, result in zip(mutants, results, strict=True):
            row.mutants += 1
            loaded = result["loaded"]
            dead = loaded is None or "died" in loaded or bool(loaded.get("missing"))
            nothing = {run.id: {"error": {"kind": "not run"}} for run in plan.runs}
            if dead or best_verdict(plan, {**nothing, **result["runs"]})[1].failed:
                row.killed += 1
            else:
                row.survivors.append(f"{right.name}: {mutant.what}")


def main() -> None:
    """Print a row for each exercise, then what was missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ids", nargs="*", metavar="ID")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one seed, no mutations")
    options = parser.parse_args()
    exercises = ours()
    chosen = [pick(exercises, id) for id in options.ids] or list(exercises.values())
    seeds = list(range(1, 2 if options.quick else 1 + options.seeds))
    rows = []
    heads = ("exercise", "caught", "named", "pairs named", "refused", "mutations caught", "seconds")
    print("| " + " | ".join(heads) + " |\n|" + " --- |" * len(heads), flush=True)
    with Runner(1) as runner:
        for exercise in chosen:
            row = measure(exercise, runner, seeds, not options.quick)
            rows.append(row)
            print(
                f"| {row.id} | {row.caught}/{row.mistakes} | {row.named}/{row.visible} "
                f"| {row.pairs_named}/{row.pairs} | {row.refused}/{row.right} | {row.killed}/{row.mutants} "
                f"| {row.seconds:.1f} |",
                flush=True,
            )
    counts = ("caught mistakes", "named visible", "pairs_named pairs", "refused right", "killed mutants")
    totals = (
        "/".join(str(sum(getattr(row, name) for row in rows)) for name in pair.split()) for pair in counts
    )
    print(f"| all | {' | '.join(totals)} | {sum(row.seconds for row in rows):.1f} |")
    for row in rows:
        for note in row.notes:
            print(f"- {row.id}: {note}")
    for row in rows:
        for survivor in row.survivors:
            print(f"- {row.id}: survives: {survivor}")


if __name__ == "__main__":
    main()
