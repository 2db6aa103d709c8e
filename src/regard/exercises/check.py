"""Checks a student's file: every exercise found in it, each in a process of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from regard.errors import RegardError
from regard.exercises import comments, detect, lend, source
from regard.exercises.judge import Check, Verdict, compared
from regard.exercises.naming import Library, Named, best_verdict, named
from regard.exercises.plan import Plan, shrunk_plan
from regard.exercises.runner import Runner
from regard.exercises.source import Submission
from regard.exercises.spec import Exercise, Trial

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
                for each in self.mistakes
                for mistake in each.mistakes
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
        work: list[tuple[Submission, detect.Found] | Result] = []
        for path in paths:
            try:
                submission = source.read(path)
                found = detect.found(submission, self.exercises, only)
            except RegardError as error:
                work.append(Result(path, only, (Check("loads", False, str(error)),)))
                continue
            if not found:
                names = ", ".join(dict.fromkeys(each.name for each in submission.definitions)) or "nothing"
                text = f"no exercise is answered here. The file defines {names}."
                work.append(Result(path, None, (Check("loads", False, text),)))
            work += [(submission, each) for each in found]
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

    def check(self, submission: Submission, found: detect.Found) -> Result:
        """The result of one exercise in one file; of exercises with one signature, that whose weights fit."""
        result = self._check(submission, found)
        for rival in found.rivals:
            if not _misfit(result):
                break
            other = self._check(submission, replace(found, exercise=rival))
            if not _misfit(other):
                return other
        return result

    def _check(self, submission: Submission, found: detect.Found) -> Result:
        began = time.monotonic()
        exercise = found.exercise
        library = self.library(exercise)
        plan = library.plan
        answer, notes = message(submission, found)
        job = plan.job([answer])
        if answer["comments"]:
            watched = [run for run in job["runs"] if plan.runs[run["id"]].kind == "value"][:COMMENT_RUNS]
            job["runs"] += [
                {**run, "id": len(plan.runs) + index, "comments": True} for index, run in enumerate(watched)
            ]
        job["warm"] = ["matplotlib.pyplot"] if "matplotlib" in submission.imported else []
        (outcome,) = self.runner.run(job)
        empty = Result(submission.path, exercise.id, (), notes=tuple(notes), seed=self.seed)
        loaded = outcome["loaded"]
        notes += _load_notes(loaded)
        problem = _load_problem(loaded, exercise)
        if problem:
            checks: tuple[Check, ...] = (Check("loads", False, problem),)
            return replace(empty, checks=checks, notes=tuple(notes), seconds=time.monotonic() - began)
        outcomes = outcome["runs"]
        choices, verdict = best_verdict(plan, outcomes)
        told = [
            convention.choices[choices[convention.name]]
            for convention in exercise.conventions
            if choices[convention.name] != next(iter(convention.choices))
        ]
        mistakes: list[Named] = []
        checks = verdict.checks
        if verdict.failed:
            if not _unwritten(outcomes):
                mistakes = named(library, outcomes, choices, verdict)
            # What failed or took long while loading is left out from now on.
            skip = [number for *_, number in loaded["skipped"]]
            checks = self._shrunk(exercise, {**answer, "skip": skip}, verdict, choices)
        if answer["comments"]:
            watched = [outcomes.get(len(plan.runs) + index, {}) for index in range(COMMENT_RUNS)]
            checks += (self._comments(answer, watched, notes),)
        return replace(
            empty,
            checks=checks,
            mistakes=tuple(mistakes),
            conventions=(*told, *verdict.notes),
            notes=tuple(dict.fromkeys(notes)),
            seconds=time.monotonic() - began,
        )

    def _comments(self, answer: dict[str, Any], watched: list[Mapping[str, Any]], notes: list[str]) -> Check:
        """What the shape comments say, against what was seen; it fails only where comments count."""
        wrong: dict[int, str] = {}
        for outcome in watched:
            for note, sentence in comments.disagreements(
                answer["comments"], outcome.get("comments", [])
            ).items():
                wrong.setdefault(note, sentence)
        text = " ".join(wrong[note] for note in sorted(wrong))
        if wrong and not self.comments_count:
            notes.append(f"shape comments: {text}")
            return Check("shape comments", True, f"(not counted) {text}")
        return Check("shape comments", not wrong, text)

    def _shrunk(
        self, exercise: Exercise, answer: dict[str, Any], verdict: Verdict, choices: Mapping[str, str]
    ) -> tuple[Check, ...]:
        """The checks, the first of those with wrong numbers replaced by its smallest failing case."""
        trials = {trial.name: trial for trial in exercise.trials}
        for index, check in enumerate(verdict.checks):
            if not check.passed and check.difference is not None and check.name in trials and check.sizes:
                smaller = self._smallest(exercise, answer, trials[check.name], check, choices)
                return (*verdict.checks[:index], smaller, *verdict.checks[index + 1 :])
        return verdict.checks

    def _smallest(
        self,
        exercise: Exercise,
        answer: dict[str, Any],
        trial: Trial,
        check: Check,
        choices: Mapping[str, str],
    ) -> Check:
        best = check
        for _ in range(SHRINK_ROUNDS):
            plan = shrunk_plan(exercise, trial, self.seed, best.sizes)
            if not plan.runs:
                return best
            try:
                expected = plan.expected(choices)
                (outcome,) = self.runner.run(plan.job([answer]))
            except RegardError:
                return best  # sizes that the reference refuses
            for run in plan.runs:
                told = outcome["runs"].get(run.id, {"error": {}})
                if told.get("error") is not None:
                    continue
                found = compared(plan, run, expected[run.id].value, told["value"])
                if found is not None:
                    best = replace(best, message=found.message, difference=found, sizes=run.item.sizes)
                    break
            else:
                return best
        return best


def _misfit(result: Result) -> bool:
    return any(check.name == "parameters" and not check.passed for check in result.checks)


def message(submission: Submission, found: detect.Found) -> tuple[dict[str, Any], list[str]]:
    """The answer as a child gets it, and what the report says about it."""
    exercise = found.exercise
    parts = lend.lent(submission.undefined, exercise.names)
    notes = list(submission.notes)
    lent = [name for name, _ in parts]
    if lent:
        notes.append(f"lent, because the file uses but does not define it: {', '.join(lent)}.")
    answer = {
        "cells": [{"label": cell.label, "source": cell.source} for cell in submission.cells],
        "subjects": [list(place) for place in found.at],
        "is_class": exercise.is_class,
        "drive": exercise.drive,
        "lend": parts,
        "d2l": lend.d2l(exercise.names),
        "withheld": list(exercise.names),
        "imported": [*submission.imported, *submission.modules],
        "folders": [submission.folder] if submission.folder else [],
        "comments": [note for cell in submission.cells for note in comments.found(cell.source, cell.label)],
    }
    return answer, notes


def _load_notes(loaded: Mapping[str, Any] | None) -> list[str]:
    """What executing the file left out or put in."""
    if loaded is None or "died" in loaded:
        return []
    notes = [f"{where} was skipped: {reason}." for where, reason, _ in loaded.get("skipped", [])]
    if loaded.get("d2l"):
        notes.append("d2l is not installed: the few names of it that homework uses were lent.")
    if loaded.get("stubbed"):
        notes.append(f"not installed here, replaced by a stub: {', '.join(loaded['stubbed'])}.")
    return notes


def _load_problem(loaded: Mapping[str, Any] | None, exercise: Exercise) -> str:
    """Why nothing can be checked, or an empty text."""
    if loaded is None:
        return "the file could not be run."
    if "died" in loaded:
        return f"the file cannot be run: {loaded['died']}."
    if loaded["missing"]:
        reasons = "; ".join(f"{where}: {reason}" for where, reason, _ in loaded["skipped"])
        return f"{', '.join(loaded['missing'])} could not be defined: {reasons or 'nothing defines it'}."
    return ""


def _unwritten(outcomes: Mapping[int, Mapping[str, Any]]) -> bool:
    """Whether every call says that it is not written yet."""
    return all(outcome.get("error", {}).get("type") == "NotImplementedError" for outcome in outcomes.values())
