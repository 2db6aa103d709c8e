"""Says which mistake an answer made, by comparing its results with those of known wrong versions.

An answer that gives a known mistake's numbers in every call made that mistake, whatever its code looks like.
Where numbers cannot tell (a tensor on the wrong device, an input changed), the pattern of failed checks does.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

from regard.checking.child.messages import Answer, Cell, Failure, Outcome, Subject
from regard.checking.compare import same, tolerance_of
from regard.checking.judge import Outcomes, Verdict, compared, judged
from regard.checking.plan import Plan, Run
from regard.checking.runner import Runner
from regard.checking.spec import BIAS, Exercise, Mistake, left_out
from regard.checking.trials import Trial
from regard.errors import ArgumentError

MOST_PAIRS = 150
MOST = 0.75  # of the failing calls
SCREENING_RUNS = 2
MOST_CONFIRMED = 8


@dataclass(frozen=True, eq=False)
class Known:
    """A wrong version and what it gives."""

    mistakes: tuple[Mistake, ...]
    outcomes: Outcomes
    choices: Mapping[str, str]
    verdict: Verdict
    passes: frozenset[int]  # the runs whose result is right


@dataclass(frozen=True, eq=False)
class Named:
    """The mistakes that an answer made; not `certain` when only the pattern of failed checks says so."""

    mistakes: tuple[Mistake, ...]
    certain: bool
    mostly: bool = False  # equal in most of the failing calls, not in all

    @property
    def sentence(self) -> str:
        """What a student reads."""
        names = " and ".join(mistake.name for mistake in self.mistakes)
        symptoms = " ".join(mistake.hints[0] for mistake in self.mistakes)
        if not self.certain:
            return f"It fails as this does: {names}. {symptoms}"
        where = "In most failing calls your output" if self.mostly else "Your output"
        return f"{where} equals: {names}. {symptoms}"


def plain_answer(exercise: Exercise, source: str) -> Answer:
    """The message of an answer that is one source text of ours."""
    return Answer(
        [Cell("", source)], [Subject(name) for name in exercise.names], exercise.is_class, exercise.drive
    )


def best_verdict(plan: Plan, outcomes: Outcomes) -> tuple[dict[str, str], Verdict]:
    """The choice of conventions under which the fewest checks fail, ours where it makes no difference."""
    best: tuple[dict[str, str], Verdict] | None = None
    for choices in _possible(plan, outcomes):
        verdict = judged(plan, outcomes, choices)
        if best is None or len(verdict.failed) < len(best[1].failed):
            best = (choices, verdict)
        if not verdict.failed:
            break
    assert best is not None
    return best


def _possible(plan: Plan, outcomes: Outcomes) -> list[dict[str, str]]:
    """The choices that the answer may have made: which biases it does without can be seen, not guessed."""
    if all(convention.name != BIAS for convention in plan.exercise.conventions):
        return plan.choices()
    missing = {
        name
        for run in plan.runs
        if (unfit := outcomes[run.id].unfit) is not None
        for name in (parameter.partition(" ")[0] for parameter in unfit.ours)
        if name.endswith("bias")
    }
    seen = [choices for choices in plan.choices() if left_out(choices[BIAS]) == missing]
    return seen or [choices for choices in plan.choices() if choices[BIAS] == "used"]


def passing_runs(plan: Plan, outcomes: Outcomes, choices: Mapping[str, str]) -> frozenset[int]:
    """The runs whose result is right."""
    expected = plan.expected(choices)

    def right(run: Run) -> bool:
        outcome = outcomes[run.id]
        if isinstance(run.item, Trial) and run.item.raises:
            return outcome.error is not None and outcome.error.type in run.item.raises
        return outcome.error is None and compared(plan, run, expected[run.id].value, outcome.value) is None

    return frozenset(run.id for run in plan.runs if run.kind in ("value", "probe") and right(run))


class Library:
    """The known mistakes of one plan, run when they are first asked for."""

    def __init__(self, plan: Plan, runner: Runner) -> None:
        self.plan, self.runner = plan, runner
        self.lock = threading.Lock()
        self._singles: list[Known] | None = None
        self._settled: dict[int, bool] = {}
        self._screened: dict[tuple[int, ...], list[Outcomes]] = {}
        self.value_runs = [run for run in plan.runs if run.kind in ("value", "probe")]

    def settled(self, run: Run) -> bool:
        """Whether every convention asks for the same result here: how a row that sees nothing is filled, say,
        tells nothing about an answer's mistake.
        """
        if run.id not in self._settled:
            ours, *others = (
                self.plan.expected(choices)[run.id].value
                for choices in self.plan.choices()
                if choices.get(BIAS, "used") == "used"
            )
            tolerance = tolerance_of("float32", self.plan.exercise.tolerance)
            self._settled[run.id] = all(same(ours, other, tolerance) for other in others)
        return self._settled[run.id]

    def singles(self) -> list[Known]:
        """Every known mistake on its own."""
        with self.lock:
            if self._singles is None:
                self._singles = self.known(
                    [(mistake,) for mistake in self.plan.exercise.mistakes], self.plan.runs
                )
            return self._singles

    @cached_property
    def pairs(self) -> list[tuple[Mistake, ...]]:
        """Every two mistakes whose edits go together."""
        pairs: list[tuple[Mistake, ...]] = []
        for pair in itertools.combinations(self.plan.exercise.mistakes, 2):
            with contextlib.suppress(ArgumentError):  # both edit the same place
                if pair[0].of == pair[1].of:
                    self.plan.exercise.source_of(*pair)
                    pairs.append(pair)
        return pairs[:MOST_PAIRS]

    def screened(self, runs: list[Run]) -> list[Outcomes]:
        """What each pair gives in a few runs: enough to leave out nearly all of them."""
        key = tuple(run.id for run in runs)
        with self.lock:
            if key not in self._screened:
                self._screened[key] = self._outcomes(self.pairs, runs)
            return self._screened[key]

    def known(self, combinations: Sequence[tuple[Mistake, ...]], runs: list[Run]) -> list[Known]:
        """The wrong versions with what they give in `runs`."""
        versions = []
        for mistakes, outcomes in zip(combinations, self._outcomes(combinations, runs), strict=True):
            choices, verdict = best_verdict(self.plan, outcomes)
            passes = passing_runs(self.plan, outcomes, choices)
            versions.append(Known(mistakes, outcomes, choices, verdict, passes))
        return versions

    def _outcomes(self, combinations: Sequence[tuple[Mistake, ...]], runs: list[Run]) -> list[Outcomes]:
        exercise, plan = self.plan.exercise, self.plan
        if not combinations:
            return []
        answers = [plain_answer(exercise, exercise.source_of(*mistakes)) for mistakes in combinations]
        nothing = {run.id: Outcome(error=Failure("not run")) for run in plan.runs}
        step = -(-len(answers) // self.runner.n_worker)
        parts = [answers[first : first + step] for first in range(0, len(answers), step)]
        with ThreadPoolExecutor(len(parts)) as pool:
            results = pool.map(lambda part: self.runner.run(plan.job(part, runs), patient=True), parts)
        return [{**nothing, **result.runs} for part in results for result in part]


def named(library: Library, outcomes: Outcomes, choices: Mapping[str, str], verdict: Verdict) -> list[Named]:
    """The mistakes that explain a failing answer, best first; empty when none does."""
    plan = library.plan
    passes = passing_runs(plan, outcomes, choices)
    singles = library.singles()
    shares = {id(known): _agreement(library, known, outcomes, passes) for known in singles}
    equal = [known for known in singles if shares[id(known)] == 1]
    if len(passes) == len(library.value_runs):  # the numbers are right: only the other checks can tell
        return _by_pattern(singles, verdict)
    if equal:
        return [Named(_closest(equal, verdict).mistakes, True)]
    if not _mostly_errors(library, outcomes):
        pair = _pair(library, outcomes, passes)
        if pair is not None:
            return [Named(pair.mistakes, True)]
        # Random numbers do not agree by chance: a mistake that is met in most calls was made, and something
        # else besides it.
        best = max(singles, key=lambda known: shares[id(known)], default=None)
        if best is not None and shares[id(best)] >= MOST:
            return [Named(best.mistakes, True, mostly=True)]
    if any(not check.passed and check.kind == "wrong" for check in verdict.checks):
        return []  # the numbers speak against every mistake we know
    return _by_pattern(singles, verdict)  # chance, as in dropout, gives other numbers for the same mistake


def _pair(library: Library, outcomes: Outcomes, passes: frozenset[int]) -> Known | None:
    """The two known mistakes that together give what the answer gives."""
    ran = [run for run in library.value_runs if outcomes[run.id].error is None]
    wrong = sorted((run for run in ran if run.id not in passes), key=lambda run: not library.settled(run))
    few = [*wrong[:SCREENING_RUNS], *[run for run in ran if run.id in passes][:1]]
    near = [
        pair
        for pair, theirs in zip(library.pairs, library.screened(few), strict=True)
        if all(_agree(library, run, outcomes[run.id], theirs[run.id]) for run in few if run in wrong)
    ]
    for known in library.known(near[:MOST_CONFIRMED], library.value_runs):
        if _agreement(library, known, outcomes, passes) == 1:
            return known
    return None


def _mostly_errors(library: Library, outcomes: Outcomes) -> bool:
    """An answer that cannot even run is no pair of two subtle mistakes."""
    errors = [run for run in library.value_runs if outcomes[run.id].error is not None]
    return len(errors) == len(library.value_runs)


def _by_pattern(candidates: list[Known], verdict: Verdict) -> list[Named]:
    """The one mistake that fails the same checks in the same way; several, or none, have no name."""
    matching = [known for known in candidates if _complaints(known.verdict) == _complaints(verdict)]
    return [Named(matching[0].mistakes, False)] if len(matching) == 1 else []


def _complaints(verdict: Verdict) -> dict[str, str]:
    """What each failed check says, without the numbers and lines that differ from answer to answer."""
    return {
        check.name: re.sub(r"\(.*?\)|expected .*", "", check.message)
        for check in verdict.checks
        if not check.passed
    }


def _closest(candidates: list[Known], verdict: Verdict) -> Known:
    """Of several with the same numbers, the one that fails the same checks."""
    return max(candidates, key=lambda known: -len(known.verdict.failed ^ verdict.failed))


def _agreement(library: Library, known: Known, outcomes: Outcomes, passes: frozenset[int]) -> float:
    """In which part of the calls that one of them fails an answer gives what a known mistake gives."""
    runs = [run for run in library.value_runs if run.id not in passes or run.id not in known.passes]
    runs = [run for run in runs if library.settled(run)] or runs
    if not runs:
        return 1.0
    return sum(_agree(library, run, outcomes[run.id], known.outcomes[run.id]) for run in runs) / len(runs)


def _agree(library: Library, run: Run, mine: Outcome, theirs: Outcome) -> bool:
    """Whether two answers gave the same in one call."""
    if mine.error is not None or theirs.error is not None:
        # An answer that was stopped, or never ran, raised nothing that could be compared.
        types = [outcome.error.type if outcome.error is not None else "" for outcome in (mine, theirs)]
        return types[0] == types[1] and types[0] not in ("", "TimeLimit")
    exercise, view = library.plan.exercise, library.plan.checks.view
    first, second = mine.value, theirs.value
    if view is not None:
        case = library.plan.cases[run.case]
        try:
            first, second = view(case, first), view(case, second)
        except (RuntimeError, TypeError, AttributeError, IndexError, ValueError):
            return False
    return same(first, second, 2 * tolerance_of("float32", exercise.tolerance))
