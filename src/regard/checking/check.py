"""Checks a student's file: every exercise that it answers, each in a process of its own."""

import secrets
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from regard.checking import comments, lending
from regard.checking.apart import Defined, defined_names, rivals, without
from regard.checking.child.messages import Answer, LoadReport
from regard.checking.compare import off
from regard.checking.confirm import MOST_ROUNDING, confirmed
from regard.checking.judge import Check, compared, visible
from regard.checking.naming import Diagnosis, Named, Space, best_verdict, diagnosis
from regard.checking.plan import Plan, shrunk_plan
from regard.checking.runner import Runner
from regard.checking.spec import Exercise
from regard.checking.submission import Answered, Submission, answered, read, unanswered
from regard.errors import ArgumentError, RegardError

SHRINK_ROUNDS = 3
DOUBLED = "{} takes a softmax of rows that are probabilities already: they sum to 1 before it."
COMMENT_RUNS = 4


@dataclass(frozen=True, eq=False)
class Result:
    """What checking one exercise in one file gave."""

    file: str
    exercise: str | None
    checks: tuple[Check, ...]
    mistakes: tuple[Named, ...] = ()
    nearest: str = ""  # what comes nearest, where no known mistake fits
    conventions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # what was lent, stubbed or skipped
    seed: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        """Names of files and what was lent hold an author's text: none of it may move a terminal's cursor."""
        object.__setattr__(self, "file", visible(self.file))
        for name in ("conventions", "notes"):
            object.__setattr__(self, name, tuple(map(visible, getattr(self, name))))

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
            "seed": self.seed,
            "mistakes": [
                {"name": mistake.name, "hint": mistake.hints[0]}
                for named in self.mistakes
                for mistake in named.mistakes
            ],
            "nearest": self.nearest,
            "conventions": [*self.conventions, *self.notes],
            "checks": [
                {"name": check.name, "passed": check.passed, "message": check.told} for check in self.checks
            ],
        }


class Checker:
    """Checks files with one seed; plans and known mistakes are made once for all of them."""

    def __init__(
        self,
        exercises: Mapping[str, Exercise],
        runner: Runner,
        seed: int | None = None,  # without one, inputs that nobody can have prepared for
        *,
        comments_count: bool = False,
        strict: bool = False,
        portable: Collection[str] = (),  # exercises in which another device and half precision count
        commented: Collection[str] = (),  # exercises in which every line that makes a tensor needs a comment
    ) -> None:
        self.exercises, self.runner = exercises, runner
        self.seed = secrets.randbelow(2**31) if seed is None else seed
        self.comments_count, self.strict = comments_count, strict
        self.portable, self.commented = frozenset(portable), frozenset(commented)
        self.lock = threading.Lock()
        self._spaces: dict[tuple[str, ...], Space] = {}

    def space(self, exercise: Exercise, offer: Mapping[str, str] | None = None) -> Space:
        """Return the exercise's plan and its choices; `offer` says how its calls are made, if not as ours."""
        key = (exercise.id, *(exercise.offers[0] if offer is None else offer).values())
        with self.lock:
            if key not in self._spaces:
                portable = exercise.id in self.portable
                self._spaces[key] = Space(Plan(exercise, self.seed, portable=portable, offer=offer))
            space = self._spaces[key]
            space.plan.expected(space.plan.choices()[0])
        return space

    def check_files(
        self, files: Iterable[str | Submission], only: str | None = None, maybe: Collection[str] = ()
    ) -> Iterator[Result]:
        """Results of all files, in order, as they come; whatever a file does, the others have theirs.

        Of the paths of `maybe`, as those of a folder, files that answer nothing have no result, and none has
        one for what another of them defines: an answer is kept from those that define the same.
        """
        paths = {file if isinstance(file, str) else file.path: file for file in files}
        defined = defined_names(path for path in paths if path in maybe)
        with ThreadPoolExecutor(max(1, self.runner.n_worker)) as pool:
            futures = [
                pool.submit(self._file, path, file, only, path in maybe, defined)
                for path, file in paths.items()
            ]
            for future in futures:
                yield from future.result()

    def _file(
        self, path: str, file: str | Submission, only: str | None, maybe: bool, defined: Defined
    ) -> list[Result]:
        """The results of one file; where it cannot be read or the check itself fails, one that says so."""
        try:
            submission = read(file) if isinstance(file, str) else file
            answers = answered(submission, self.exercises, only)
        except RegardError as error:
            return [] if maybe and isinstance(error, ArgumentError) else [_unreadable(path, only, str(error))]
        except Exception as error:  # a mistake of ours, in reading what nobody thought of
            return [_unreadable(path, only, _ours(error))]
        results: dict[str | None, Result] = {}
        for answer in answers:
            try:
                withheld = rivals(submission, answer.subjects, defined)
                with without(submission, withheld) as alone:
                    mine = {definition.name for definition in alone.definitions}
                    if not set(answer.subjects) <= mine:
                        continue  # it is imported from a file that is checked itself
                    result = self.check(alone, answer)
            except Exception as error:
                result = _unreadable(path, answer.exercise.id, _ours(error))
            # Of two definitions that turn out to answer the same exercise, the later one counts.
            results = {id: other for id, other in results.items() if id != result.exercise}
            results[result.exercise] = result
        problem = " ".join(submission.broken)
        if not answers and not maybe:
            problem = problem or unanswered(submission, self.exercises)
        return [*results.values(), *([_unreadable(path, None, problem)] if problem else [])]

    def check(self, submission: Submission, answer: Answered) -> Result:
        """The result of one exercise in one file; of exercises with one signature, that whose weights fit."""
        result = self._offered(submission, answer)
        for rival in answer.rivals if _misfit(result) else ():
            other = self._offered(submission, replace(answer, exercise=rival))
            if not _misfit(other):
                return other
        return result

    def _offered(self, submission: Submission, answer: Answered) -> Result:
        """Check with calls made in our way; where that fails, with those that the task accepts too."""
        ours, *others = answer.exercise.offers
        best = self._check(submission, answer, ours)
        for offer in () if best.passed else others:
            other = self._check(submission, answer, offer)
            best = other if other.share > best.share else best
        return best

    def _check(self, submission: Submission, answers: Answered, offer: Mapping[str, str]) -> Result:
        began = time.monotonic()
        exercise = answers.exercise
        space = self.space(exercise, offer)
        plan = space.plan
        every_shape = exercise.id in self.commented
        answer, notes = message(submission, answers, every_shape=every_shape)
        values = [run.id for run in plan.runs if run.kind == "value"]
        watched = values[:COMMENT_RUNS] if answer.notes else []
        orders = [replace(order, watched=order.id in watched) for order in plan.orders]
        warm = ["matplotlib.pyplot"] if "matplotlib" in submission.imported else []
        ran = self.runner.run(answer, orders, warm=warm)
        loaded = ran.loaded or LoadReport(died="it has nothing to call")
        checks = [Check("loads", False, loaded.problem)]
        known = Diagnosis()
        chosen: list[str] = []
        notes += _load_notes(loaded)
        if not loaded.problem:
            # What failed or took long while loading is left out from now on.
            again = replace(answer, skip=[statement.number for statement in loaded.skipped])
            outcomes = ran.runs
            choices, verdict = best_verdict(plan, outcomes)
            if verdict.failed:
                outcomes, unrepeated = confirmed(self.runner, again, plan, outcomes)
                choices, verdict = best_verdict(plan, outcomes)
                notes += unrepeated
            checks = list(verdict.checks)
            for name, sentences in exercise.conventions.items():
                chosen += [sentences[choices[name]]] if choices[name] != next(iter(sentences)) else []
            if verdict.failed:
                if not all(outcome.error for outcome in outcomes.values()):  # errors alone name nothing
                    known = diagnosis(space, outcomes, choices, verdict)
                self._shrink(checks, plan, again, choices)
            if self.strict and chosen:
                text = f"here only our choice counts: {' '.join(chosen)}"
                checks.append(Check("as the task says", False, text))
                chosen = []
            notes += verdict.notes
            doubled = dict.fromkeys(line for outcome in outcomes.values() for line in outcome.doubled)
            notes += [DOUBLED.format(line) for line in doubled]
            if answer.notes:
                wrong: dict[int, str] = {}
                for outcome in ran.runs.values():
                    wrong = comments.disagreements(answer.notes, outcome.seen) | wrong
                text = " ".join(wrong[note] for note in sorted(wrong))
                if wrong and not self.comments_count:
                    notes.append(f"shape comments: {text}")
                    text = f"(not counted) {text}"
                if any(note.text for note in answer.notes):
                    checks.append(Check("shape comments", not wrong or not self.comments_count, text))
            if every_shape:
                seen = [record for outcome in ran.runs.values() for record in outcome.seen]
                bare = comments.uncommented(answer.notes, seen)
                text = f"no shape comment, as in `# [batch, query, key]`, at {', '.join(bare)}."
                checks.append(Check(comments.EVERY_SHAPE, not bare, text if bare else ""))
        said, seconds = tuple(dict.fromkeys(notes)), time.monotonic() - began
        named, nearest = known.named, known.nearest
        file, id = submission.path, exercise.id
        return Result(file, id, tuple(checks), named, nearest, tuple(chosen), said, self.seed, seconds)

    def _shrink(self, checks: list[Check], plan: Plan, answer: Answer, choices: Mapping[str, str]) -> None:
        """Put in the place of the first check with wrong numbers its smallest failing case."""
        trials = {trial.name: trial for trial in plan.checks.trials if trial.sizes}
        for index, check in enumerate(checks):
            if check.name in trials and check.difference is not None and check.difference.numbers is not None:
                for _ in range(SHRINK_ROUNDS):
                    smaller = shrunk_plan(plan, trials[check.name], checks[index].sizes)
                    failing = self._failing(smaller, answer, choices)
                    if failing is None:
                        return
                    checks[index] = replace(check, **failing)
                return

    def _failing(self, plan: Plan, answer: Answer, choices: Mapping[str, str]) -> dict[str, Any] | None:
        """What a check says of the first run whose numbers are wrong by more than rounding, or None."""
        try:
            expected = plan.expected(choices)
        except RegardError:
            return None  # sizes that the reference refuses
        outcomes = self.runner.run(answer, plan.orders).runs
        for run in plan.runs:
            outcome = outcomes.get(run.id)
            if outcome is not None and outcome.error is None:
                wrong = compared(plan, run, expected[run.id].value, outcome.value)
                if wrong is None or wrong.numbers is None:  # a shape of size 1 tells nothing
                    continue
                want, have, _ = wrong.numbers
                if off(want, have) > MOST_ROUNDING * plan.tolerance:
                    return {"message": wrong.message, "difference": wrong, "sizes": run.item.sizes}
        return None


def _unreadable(path: str, exercise: str | None, text: str) -> Result:
    return Result(path, exercise, (Check("loads", False, text),))


def _ours(error: Exception) -> str:
    return f"the check itself failed, which is a mistake of ours: {type(error).__name__}: {error}"


def _misfit(result: Result) -> bool:
    return any(check.name == "parameters" and not check.passed for check in result.checks)


def message(
    submission: Submission, answers: Answered, *, every_shape: bool = False
) -> tuple[Answer, list[str]]:
    """The answer as a child gets it, and what the report says about it."""
    exercise = answers.exercise
    lent = lending.lent(submission.undefined, exercise.names)
    notes = list(submission.notes)
    if lent:
        notes.append(f"lent, because the file uses but does not define it: {', '.join(lent)}.")
    answer = Answer(
        cells=list(submission.cells),
        subjects=answers.subjects,
        is_class=exercise.is_class,
        drive=exercise.drive,
        lent=lent,
        d2l=lending.d2l(),
        imported=list(submission.imported),
        folders=[submission.folder] if submission.folder else [],
        notes=[
            note
            for cell in submission.cells
            for note in comments.shape_notes(cell.source, cell.label, silent=every_shape)
        ],
    )
    return answer, notes


def _load_notes(loaded: LoadReport) -> list[str]:
    """What executing the file left out or put in."""
    notes = [f"{statement.where} was skipped: {statement.reason}." for statement in loaded.skipped]
    if loaded.unconfined:
        notes.append(f"this system kept nothing from the answer of: {', '.join(loaded.unconfined)}.")
    if loaded.d2l:
        notes.append("d2l is not installed: the few names of it that homework uses were lent.")
    notes += [DOUBLED.format(line) for line in loaded.doubled]
    if loaded.stubbed:
        notes.append(f"not installed here, replaced by a stub: {', '.join(loaded.stubbed)}.")
    return notes
