"""Says which mistake an answer made: which choices of the reference give the answer's numbers.

The reference of an exercise is written once, with its decisions as keywords whose defaults are right. A
mistake is another choice with a name. So it is looked for among plain tensors in this process: every mistake
by itself, then two at once, each also beside another convention. Results are compared row by row, because a
row that something else touches must not hide the rest. Where numbers cannot tell (a tensor on the wrong
device, an input changed), the checks that fail do, and what they say.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard.checking.child.messages import Answer, Cell, Tree
from regard.checking.child.trees import leaves, mapped
from regard.checking.compare import apart, equal_rows, n_row, tolerance_of
from regard.checking.forms import FORM, formed
from regard.checking.judge import NOT_TRIED, Outcomes, Verdict, judged
from regard.checking.plan import Plan, Run, tensors_of
from regard.checking.spec import Exercise, Mistake
from regard.checking.trials import ANYTHING, Case, Probe, Trial
from regard.errors import LoadError, RegardError

MOST = 0.75  # of what is wrong, for a name with "mostly"
NEAR = 0.3  # of what is wrong, to be worth saying
FEWEST_ROWS = 4  # that a mistake explains which is met in the failing calls alone
FEWEST_RIGHT_ROWS = 12  # that a mistake explains which would change rows that are right
MOST_CALLS = 2000  # of the reference, for one answer
MOST_RUNS = 3  # of the wrong ones, and half as many right ones, to tell how near a mistake is
MOST_BASES = 3  # mistakes that explain most, and as many that come nearest, to which a second one is added

UNVIEWABLE = (RuntimeError, TypeError, AttributeError, IndexError, ValueError)
CANNOT = (*UNVIEWABLE, KeyError, ZeroDivisionError, RegardError)
RAISED = object()  # in the place of a result: with these choices the call cannot be made

Choices = Mapping[str, str]


@dataclass(frozen=True, eq=False)
class Named:
    """The mistakes that an answer made; not `certain` when only the pattern of failed checks says so."""

    mistakes: tuple[Mistake, ...]
    certain: bool
    where: str = ""  # "in the failing calls": others are right, which the mistake would change too

    @property
    def sentence(self) -> str:
        """What a student reads."""
        names = " and ".join(mistake.name for mistake in self.mistakes)
        symptoms = " ".join(mistake.hints[0] for mistake in self.mistakes)
        if not self.certain:
            return f"It fails as this does: {names}. {symptoms}"
        start = f"{self.where} your output".strip().capitalize() if self.where else "Your output"
        return f"{start} equals: {names}. {symptoms}"


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What is known about a failing answer: names, or else what comes nearest."""

    named: tuple[Named, ...] = ()
    nearest: str = ""


@dataclass(frozen=True, eq=False)
class Seen:
    """What an answer gave in one run, beside what is right there."""

    run: Run
    value: Tree
    right: Tensor  # for each row, whether it is right
    settled: Tensor  # for each row, whether every convention asks for the same there
    counts: Tensor  # for each row, whether not just anything will do


@dataclass(frozen=True, eq=False)
class Agreement:
    """How a departure's results compare with an answer's."""

    mistakes: tuple[Mistake, ...]
    explained: int  # wrong rows that it gives too
    share: float  # of what either has wrong, as a mean over runs
    distance: float = 0.0  # of the numbers, as a mean over runs; infinite where forms differ

    @property
    def exact(self) -> bool:
        """Whether it gives everything that the answer gives."""
        return self.explained > 0 and self.share == 1


def plain_answer(exercise: Exercise, source: str) -> Answer:
    """The message of an answer that is one source text of ours."""
    last = dict.fromkeys(exercise.names, -1)
    return Answer([Cell("", source)], last, exercise.is_class, exercise.drive)


def best_verdict(plan: Plan, outcomes: Outcomes) -> tuple[dict[str, str], Verdict]:
    """The choice of conventions under which the fewest checks fail, ours where it makes no difference."""
    best: tuple[dict[str, str], Verdict] | None = None
    told_apart, may_be = plan.told_apart(), plan.choices()
    for choices in [choices for choices in may_be if choices in told_apart] or may_be[:1]:
        verdict = judged(plan, outcomes, choices)
        if best is None or len(verdict.failed) < len(best[1].failed):
            best = (choices, verdict)
        if not verdict.failed:
            break
    assert best is not None
    return best


class Space:
    """The choices of one exercise on the calls of one plan; what a single mistake gives is kept."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.mistakes = [mistake for mistake in plan.exercise.mistakes if mistake.choices]
        # Results that hang on chance, which a judge looks at, tell nothing by their numbers.
        self.runs = sorted(
            (
                run
                for run in plan.runs
                if run.kind in ("value", "probe")
                and not (isinstance(run.item, Trial) and run.item.raises)
                and not (isinstance(run.item, Probe) and run.item.judge and plan.cases[run.case].train)
            ),
            key=lambda run: _size(plan.cases[run.case]),
        )
        self.tolerance = 2 * tolerance_of("float32", plan.exercise.tolerance)
        self._given: dict[tuple[Any, ...], Any] = {}
        self._settled: dict[int, Tensor] = {}

    def given(self, run: Run, conventions: Choices, mistakes: Sequence[Mistake] = ()) -> Any:
        """What the reference gives with these choices, as the exercise views it, or RAISED."""
        key = (run.case, *conventions.values(), *(id(mistake) for mistake in mistakes))
        if key not in self._given:
            result = self.view(run, self.raw(run, conventions, mistakes))
            if len(mistakes) > 1:
                return result
            self._given[key] = result
        return self._given[key]

    def raw(self, run: Run, conventions: Choices, mistakes: Sequence[Mistake] = ()) -> Any:
        """What the reference itself gives with these choices, or RAISED."""
        choices = dict(conventions)
        for mistake in mistakes:
            choices |= mistake.choices
        form = choices.pop(FORM, "")
        try:
            with torch.no_grad():
                return formed(self.plan.checks.reference(self.plan.cases[run.case], **choices), form)
        except NameError as error:  # of a formula: the exercise is wrong, not the answer
            raise LoadError(f"{self.plan.exercise.id}, with {choices}: {error}") from error
        except CANNOT:
            return RAISED

    def view(self, run: Run, value: Tree) -> Tree:
        """A result as the exercise compares it, or as it is where it cannot be seen so."""
        view = self.plan.checks.view
        if view is None or value is RAISED:
            return value
        try:
            return view(self.plan.cases[run.case], value)
        except UNVIEWABLE:
            return value

    def settled(self, run: Run) -> Tensor:
        """For each row, whether every convention asks for the same: how a row that sees nothing is filled,
        say, tells nothing about a mistake.
        """
        if run.id not in self._settled:
            ours, *others = (self.given(run, choices) for choices in self.plan.choices())
            rows = torch.ones_like(equal_rows(ours, ours, self.tolerance))
            for other in others:
                rows = rows & equal_rows(ours, other, self.tolerance)
            parts = rows.split([n_row(leaf) for _, leaf in leaves(ours)] or [len(rows)])
            # Where a convention changes most of a result, all of that counts.
            rows = torch.cat([part | (2 * part.sum() < len(part)) for part in parts])
            self._settled[run.id] = rows & equal_rows(ours, mapped(ours, _without_anything), self.tolerance)
        return self._settled[run.id]


class Search:
    """The mistakes that explain one answer, looked for under a limit of calls."""

    def __init__(self, space: Space, outcomes: Outcomes, conventions: Choices) -> None:
        self.space, self.conventions = space, conventions
        self.left = MOST_CALLS
        self.seen: list[Seen] = []
        self.failed: list[Run] = []  # runs without a result
        self.right: list[str] = []  # names of calls that are right
        expected = space.plan.expected(conventions)
        for run in space.runs:
            outcome = outcomes[run.id]
            if outcome.error is not None:
                if outcome.error.kind != "missing":
                    self.failed.append(run)
                continue
            value = space.view(run, outcome.value)
            want = space.view(run, expected[run.id].value)
            right = equal_rows(value, want, space.tolerance / 2)
            settled, counts = space.settled(run), equal_rows(want, mapped(want, _without_anything), 1.0)
            if settled.shape == right.shape:
                right = right | ~counts
            else:
                settled = counts = torch.ones_like(right)
            self.seen.append(Seen(run, value, right, settled, counts))
            if bool(right.all()):
                self.right.append(run.item.name)
        if not any(bool((~seen.right & seen.settled).any()) for seen in self.seen):
            # What is wrong lies where conventions differ: all rows count.
            self.seen = [replace(seen, settled=seen.counts) for seen in self.seen]
        self.wrong = [seen for seen in self.seen if bool((~seen.right & seen.settled).any())]
        others = [seen for seen in self.seen if seen not in self.wrong]
        self.seen = [*self.wrong, *others]
        # The plainest call, without lengths or a mask say, is wrong by fewer mistakes than others.
        plain = sorted(self.wrong, key=self._n_argument)[:1]
        more = [seen for seen in self.wrong if seen not in plain]
        self.telling = [*plain, *more[: MOST_RUNS - 1], *others[: MOST_RUNS // 2]]
        self.floating = any(
            isinstance(leaf, Tensor) and leaf.is_floating_point()
            for seen in self.wrong
            for _, leaf in leaves(seen.value)
        )

    def _n_argument(self, seen: Seen) -> int:
        case = self.space.plan.cases[seen.run.case]
        return len(case.args) + len(case.kwargs)

    @property
    def wrong_runs(self) -> list[Run]:
        """The runs that give wrong numbers, or none."""
        return [*(seen.run for seen in self.wrong), *self.failed]

    def exact(
        self, candidates: Iterator[tuple[Mistake, ...]], conventions: Choices
    ) -> tuple[Mistake, ...] | None:
        """The first candidate that gives what the answer gives in every row of every run."""
        for mistakes in candidates:
            if self.left <= 0:
                return None
            if self._raises(mistakes, conventions) and self._equal(mistakes, conventions):
                return mistakes
        return None

    def _raises(self, mistakes: tuple[Mistake, ...], conventions: Choices) -> bool:
        """Whether it has no result wherever the answer has none."""
        return all(self._given(run, conventions, mistakes) is RAISED for run in self.failed)

    def _equal(self, mistakes: tuple[Mistake, ...], conventions: Choices) -> bool:
        """Whether it gives what the answer gives, in every row."""
        for seen in self.seen:
            rows = self._rows(seen, mistakes, conventions)
            if rows is None or bool((~rows & seen.settled).any()):
                return False
        return True

    def singles(self) -> list[Agreement]:
        """Every mistake by itself, the nearest first, by the runs that tell most."""
        near = [
            self.agreement((mistake,), self.telling, self.failed[:MOST_RUNS])
            for mistake in self.space.mistakes
        ]
        return sorted(near, key=lambda agreement: (-agreement.share, agreement.distance))

    def _given(self, run: Run, conventions: Choices, mistakes: tuple[Mistake, ...]) -> Any:
        self.left -= 1  # kept or not, so that what is named does not hang on which answers came before
        return self.space.given(run, conventions, mistakes)

    def _rows(self, seen: Seen, mistakes: tuple[Mistake, ...], conventions: Choices) -> Tensor | None:
        result = self._given(seen.run, conventions, mistakes)
        return None if result is RAISED else equal_rows(seen.value, result, self.space.tolerance)

    def agreement(
        self, mistakes: tuple[Mistake, ...], runs: Sequence[Seen], failed: Sequence[Run]
    ) -> Agreement:
        """How the results compare in some runs, and in some where the answer has none."""
        conventions = self.conventions
        explained, shares, distances = 0, [], []
        for seen in runs:
            rows = self._rows(seen, mistakes, conventions)
            if rows is None:
                shares.append(0.0)
                distances.append(math.inf)
                continue
            distances.append(apart(seen.value, self.space.given(seen.run, conventions, mistakes)))
            wrong = ~seen.right & seen.settled
            either = wrong | (~rows & seen.settled)
            if bool(either.any()):
                both = int((wrong & rows).sum())
                explained += both
                shares.append(both / int(either.sum()))
        # An answer that raises where this mistake would not made another one too.
        shares += [0.0 for run in failed if self._given(run, conventions, mistakes) is not RAISED]
        share = sum(shares) / len(shares) if shares else 1.0
        return Agreement(mistakes, explained, share, sum(distances) / max(1, len(distances)))


def diagnosis(space: Space, outcomes: Outcomes, choices: Choices, verdict: Verdict) -> Diagnosis:
    """The mistakes that explain a failing answer, or what comes nearest."""
    by_pattern = _by_pattern(space.plan.exercise, verdict)
    misfits = tuple(mistake for mistake in by_pattern if "parameters" in mistake.fails)
    at_random = any((unfit := outcome.unfit) is not None and unfit.yours for outcome in outcomes.values())
    if misfits or at_random:  # weights of the answer that are not ours: its numbers tell nothing
        return Diagnosis((Named(misfits[:1], False),) if misfits else ())
    search = Search(space, outcomes, choices)
    # Chance, as in dropout, gives other numbers for the same mistake; wrong numbers speak against it.
    wrong = {run.item.name for run in search.wrong_runs}
    if wrong:  # then a check of that kind must be among those that speak for a mistake
        names = {item.name for item in space.plan.checks.items}
        by_pattern = tuple(mistake for mistake in by_pattern if names & set(mistake.fails))
    if by_pattern and not any(run.item.kind == "wrong" for run in search.wrong_runs):
        return Diagnosis((Named(by_pattern[:1], False),))
    if not search.wrong:
        return Diagnosis()
    others = [
        other
        for other in space.plan.choices()
        if sum(other[name] != choice for name, choice in choices.items()) == 1
    ]
    exact = _exact(space, search, choices, others)
    return _near(search) if exact is None else Diagnosis((Named(exact, True),))


def _exact(
    space: Space, search: Search, choices: Choices, others: Sequence[Choices]
) -> tuple[Mistake, ...] | None:
    """One mistake, also beside another convention; then two."""
    alone = [(mistake,) for mistake in space.mistakes]
    for conventions in (choices, *others):
        exact = search.exact(iter(alone), conventions)
        if exact is not None:
            return exact
    near = search.singles()
    explain = [agreement for agreement in near if agreement.explained]
    close = sorted(near, key=lambda agreement: agreement.distance)
    bases = list(dict.fromkeys([*explain[:MOST_BASES], *close[:MOST_BASES]]))
    for conventions in (choices, *others):
        exact = search.exact(_pairs(bases, near), conventions)
        if exact is not None:
            return exact
    # Two that both change every number explain nothing alone. Few words or booleans agree by chance.
    rest = [agreement for agreement in close if agreement not in bases]  # pairs with a base were tried
    return search.exact(_pairs(rest, rest), choices) if search.floating else None


def _pairs(bases: Sequence[Agreement], others: Sequence[Agreement]) -> Iterator[tuple[Mistake, ...]]:
    """Two mistakes that decide different things, one of them a base."""
    tried = set()
    for first, second in itertools.product(bases, others):
        (base,), (other,) = first.mistakes, second.mistakes
        pair = frozenset((id(base), id(other)))
        if pair not in tried and not set(base.choices) & set(other.choices):
            tried.add(pair)
            yield base, other


def _near(search: Search) -> Diagnosis:
    """A mistake that is met in all failing calls or in most of what is wrong, or the nearest in words."""
    near = [agreement for agreement in search.singles() if agreement.explained]
    for agreement in near:
        failing = search.agreement(agreement.mistakes, search.wrong, search.failed)
        if failing.exact and failing.explained >= FEWEST_ROWS:
            return Diagnosis((Named(agreement.mistakes, True, "in the failing calls"),))
    n_wrong = sum(int((~seen.right & seen.settled).sum()) for seen in search.wrong)
    if not near or not search.floating:
        return Diagnosis()
    # Random numbers do not agree by chance: a mistake met in most rows was made, and another beside it.
    best = search.agreement(near[0].mistakes, search.seen, search.failed)
    if best.share >= MOST:
        return Diagnosis((Named(best.mistakes, True, "in most failing calls"),))
    if best.explained == n_wrong >= FEWEST_RIGHT_ROWS and not search.failed:
        return Diagnosis((Named(best.mistakes, True, "in the part that is wrong"),))
    if best.share < NEAR:
        return Diagnosis()
    names = list(dict.fromkeys(search.right))
    right = f" Right are: {', '.join(names)}." if names else ""
    (mistake,) = best.mistakes
    return Diagnosis(
        nearest=f"No known mistake gives your output. The nearest: {mistake.name}, which explains "
        f"{best.explained} of {n_wrong} wrong rows.{right}"
    )


def _by_pattern(exercise: Exercise, verdict: Verdict) -> tuple[Mistake, ...]:
    """The mistakes whose checks fail, with what they say."""
    messages = {
        check.name: check.message
        for check in verdict.checks
        if not check.passed and check.message != NOT_TRIED
    }
    return tuple(
        mistake
        for mistake in exercise.mistakes
        if mistake.fails
        and all(check in messages and says in messages[check] for check, says in mistake.fails.items())
    )


def _without_anything(leaf: Any) -> Any:
    """A leaf that differs from what it was where anything is accepted."""
    floating = isinstance(leaf, Tensor) and leaf.is_floating_point()
    return leaf.masked_fill(leaf == ANYTHING, 0.0) if floating else leaf


def _size(case: Case) -> int:
    return sum(tensor.numel() for tensor in [*tensors_of(case), *case.weights.values()])
