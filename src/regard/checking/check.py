"""Checks a student's file: every exercise found in it, each in a process of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from regard.checking import comments, lending
from regard.checking.child.messages import Answer, Cell, Loaded, Outcome
from regard.checking.judge import Check, Verdict, compared
from regard.checking.naming import Library, Named, best_verdict, named
from regard.checking.plan import Plan, shrunk_plan
from regard.checking.runner import Runner
from regard.checking.spec import Exercise
from regard.checking.submission import Answered, Submission, answered, read
from regard.checking.trials import Trial
from regard.errors import RegardError

SHRINK_ROUNDS = 3
COMMENT_RUNS = 4


@dataclass(frozen=True, eq=False)
class Result:
    """What checking one exercise in one file gave."""

    file: str
    exercise: str | None
    checks: tuple[Check, ...]
    mistakes: tuple[Named, ...] = ()
    conventions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # what was lent, stubbed or skipped
    seed: int = 0
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        return bool(self.checks) and all(check.passed for check in self.checks)

    @property
    def share(self) -> float:
        """The part of the checks that passed."""
        return sum(check.passed for check in self.checks) / max(1, len(self.checks))

    def as_json(self) -> dict[str, Any]:
        """The shape that `--json` prints."""
        return {
            "file": self.file,
            "exercise": self.exercise,
            "passed": self.passed,
            "mistakes": [
                {"name": mistake.name, "hint": mistake.hints[0]}
                for named in self.mistakes
                for mistake in named.mistakes
            ],
            "conventions": [*self.conventions, *self.notes],
            "checks": [
                {"name": check.name, "passed": check.passed, "message": check.message}
                for check in self.checks
            ],
        }


class Checker:
    """Checks files with one seed; plans and known mistakes are made once for all of them."""

    def __init__(
        self, exercises: Mapping[str, Exercise], runner: Runner, seed: int, *, comments_count: bool = False
    ) -> None:
        self.exercises, self.runner, self.seed = exercises, runner, seed
        self.comments_count = comments_count
        self.lock = threading.Lock()
        self._libraries: dict[str, Library] = {}

    def library(self, exercise: Exercise) -> Library:
        """The exercise's plan and known mistakes."""
        with self.lock:
            if exercise.id not in self._libraries:
                self._libraries[exercise.id] = Library(Plan(exercise, self.seed), self.runner)
            library = self._libraries[exercise.id]
            library.plan.expected(library.plan.choices()[0])
        return library

    def check_files(self, paths: list[str], only: str | None = None) -> list[Result]:
        """Results of all files, in order; a file that cannot be read is a result that failed."""
        work: list[tuple[Submission, Answered] | Result] = []
        for path in paths:
            try:
                submission = read(path)
                answers = answered(submission, self.exercises, only)
            except RegardError as error:
                work.append(Result(path, only, (Check("loads", False, str(error)),)))
                continue
            if not answers:
                defined = dict.fromkeys(definition.name for definition in submission.definitions)
                names = ", ".join(defined) or "nothing"
                text = f"no exercise is answered here. The file defines {names}."
                work.append(Result(path, None, (Check("loads", False, text),)))
            work += [(submission, answer) for answer in answers]
        with ThreadPoolExecutor(max(1, self.runner.n_worker)) as pool:
            results = list(
                pool.map(lambda item: item if isinstance(item, Result) else self.check(*item), work)
            )
        # Of two definitions that turn out to answer the same exercise, the later one counts.
        last = {
            (result.file, result.exercise) if result.exercise else (result.file, index): index
            for index, result in enumerate(results)
        }
        return [results[index] for index in sorted(last.values())]

    def check(self, submission: Submission, found: Answered) -> Result:
        """The result of one exercise in one file; of exercises with one signature, that whose weights fit."""
        result = self._check(submission, found)
        for rival in found.rivals:
            if not _misfit(result):
                break
            other = self._check(submission, replace(found, exercise=rival))
            if not _misfit(other):
                return other
        return result

    def _check(self, submission: Submission, found: Answered) -> Result:
        began = time.monotonic()
        exercise = found.exercise
        library = self.library(exercise)
        plan = library.plan
        answer, notes = message(submission, found)
        job = plan.job([answer])
        if answer.notes:
            watched = [run.order for run in plan.runs if run.kind == "value"][:COMMENT_RUNS]
            again = [
                replace(order, id=len(plan.runs) + index, watched=True) for index, order in enumerate(watched)
            ]
            job = replace(job, orders=[*job.orders, *again])
        warm = ["matplotlib.pyplot"] if "matplotlib" in submission.imported else []
        (ran,) = self.runner.run(job, warm=warm)
        result = Result(submission.path, exercise.id, (), seed=self.seed)
        notes += _load_notes(ran.loaded)
        problem = _load_problem(ran.loaded)
        if problem or ran.loaded is None:
            checks: tuple[Check, ...] = (Check("loads", False, problem),)
            return replace(result, checks=checks, notes=tuple(notes), seconds=time.monotonic() - began)
        choices, verdict = best_verdict(plan, ran.runs)
        chosen = [
            convention.choices[choices[convention.name]]
            for convention in exercise.conventions
            if choices[convention.name] != next(iter(convention.choices))
        ]
        mistakes: list[Named] = []
        checks = verdict.checks
        if verdict.failed:
            if not _unwritten(ran.runs):
                mistakes = named(library, ran.runs, choices, verdict)
            # What failed or took long while loading is left out from now on.
            skip = [statement.number for statement in ran.loaded.skipped]
            checks = self._shrunk(plan, replace(answer, skip=skip), verdict, choices)
        if answer.notes:
            seen = [ran.runs.get(len(plan.runs) + index, Outcome()) for index in range(COMMENT_RUNS)]
            checks += (self._comments(answer, seen, notes),)
        return replace(
            result,
            checks=checks,
            mistakes=tuple(mistakes),
            conventions=(*chosen, *verdict.notes),
            notes=tuple(dict.fromkeys(notes)),
            seconds=time.monotonic() - began,
        )

    def _comments(self, answer: Answer, watched: list[Outcome], notes: list[str]) -> Check:
        """What the shape comments say, against what was seen; it fails only where comments count."""
        wrong: dict[int, str] = {}
        for outcome in watched:
            for note, sentence in comments.disagreements(answer.notes, outcome.seen).items():
                wrong.setdefault(note, sentence)
        text = " ".join(wrong[note] for note in sorted(wrong))
        if wrong and not self.comments_count:
            notes.append(f"shape comments: {text}")
            return Check("shape comments", True, f"(not counted) {text}")
        return Check("shape comments", not wrong, text)

    def _shrunk(
        self, plan: Plan, answer: Answer, verdict: Verdict, choices: Mapping[str, str]
    ) -> tuple[Check, ...]:
        """The checks, the first of those with wrong numbers replaced by its smallest failing case."""
        trials = {trial.name: trial for trial in plan.checks.trials}
        for index, check in enumerate(verdict.checks):
            if not check.passed and check.difference is not None and check.name in trials and check.sizes:
                smaller = self._smallest(plan.exercise, answer, trials[check.name], check, choices)
                return (*verdict.checks[:index], smaller, *verdict.checks[index + 1 :])
        return verdict.checks

    def _smallest(
        self, exercise: Exercise, answer: Answer, trial: Trial, check: Check, choices: Mapping[str, str]
    ) -> Check:
        best = check
        for _ in range(SHRINK_ROUNDS):
            plan = shrunk_plan(exercise, trial, self.seed, best.sizes)
            if not plan.runs:
                return best
            try:
                expected = plan.expected(choices)
                (ran,) = self.runner.run(plan.job([answer]))
            except RegardError:
                return best  # sizes that the reference refuses
            for run in plan.runs:
                outcome = ran.runs.get(run.id)
                if outcome is None or outcome.error is not None:
                    continue
                wrong = compared(plan, run, expected[run.id].value, outcome.value)
                if wrong is not None:
                    best = replace(best, message=wrong.message, difference=wrong, sizes=run.item.sizes)
                    break
            else:
                return best
        return best


def _misfit(result: Result) -> bool:
    return any(check.name == "parameters" and not check.passed for check in result.checks)


def message(submission: Submission, found: Answered) -> tuple[Answer, list[str]]:
    """The answer as a child gets it, and what the report says about it."""
    exercise = found.exercise
    lent = lending.lent(submission.undefined, exercise.names)
    notes = list(submission.notes)
    if lent:
        names = ", ".join(part.name for part in lent)
        notes.append(f"lent, because the file uses but does not define it: {names}.")
    answer = Answer(
        cells=[Cell(cell.label, cell.source) for cell in submission.cells],
        subjects=list(found.subjects),
        is_class=exercise.is_class,
        drive=exercise.drive,
        lent=lent,
        d2l=lending.d2l(),
        withheld=list(exercise.names),
        imported=[*submission.imported, *submission.modules],
        folders=[submission.folder] if submission.folder else [],
        notes=[note for cell in submission.cells for note in comments.shape_notes(cell.source, cell.label)],
    )
    return answer, notes


def _load_notes(loaded: Loaded | None) -> list[str]:
    """What executing the file left out or put in."""
    if loaded is None or loaded.died:
        return []
    notes = [f"{statement.where} was skipped: {statement.reason}." for statement in loaded.skipped]
    if loaded.d2l:
        notes.append("d2l is not installed: the few names of it that homework uses were lent.")
    if loaded.stubbed:
        notes.append(f"not installed here, replaced by a stub: {', '.join(loaded.stubbed)}.")
    return notes


def _load_problem(loaded: Loaded | None) -> str:
    """Why nothing can be checked, or an empty text."""
    if loaded is None:
        return "the file could not be run."
    if loaded.died:
        return f"the file cannot be run: {loaded.died}."
    if loaded.missing:
        reasons = "; ".join(f"{statement.where}: {statement.reason}" for statement in loaded.skipped)
        return f"{', '.join(loaded.missing)} could not be defined: {reasons or 'nothing defines it'}."
    return ""


def _unwritten(outcomes: Mapping[int, Outcome]) -> bool:
    """Whether every call says that it is not written yet."""
    return all(
        outcome.error is not None and outcome.error.type == "NotImplementedError"
        for outcome in outcomes.values()
    )
