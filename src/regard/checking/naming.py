"""Says which mistake an answer made: which choices of the reference give the answer's numbers.

The reference of an exercise is written once, with its decisions as keywords whose defaults are right. A
mistake is another choice with a name. So it is looked for among plain tensors in this process: every mistake
by itself, then two at once, each also beside another convention. Results are compared row by row, because a
row that something else touches must not hide the rest. Where numbers cannot tell (a tensor on the wrong
device, an input changed), the checks that fail do, and what they say.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from regard.checking.child.messages import Answer, Cell, Tree, leaves, mapped
from regard.checking.compare import TOLERANCE, apart, equal_rows, n_row
from regard.checking.forms import FORM, FORMS, TIMES, VALUES, changed_numbers
from regard.checking.judge import NOT_TRIED, Outcomes, Verdict, judged
from regard.checking.plan import Plan, Run
from regard.checking.spec import Exercise, Mistake
from regard.checking.trials import ANYTHING, Probe
from regard.errors import LoadError, RegardError

MOST = 0.75  # of what is wrong, for a name with "mostly"
NEAR = 0.9  # of the wrong rows, for the nearest mistake to be worth saying
FEWEST_ROWS = 4  # that a mistake explains which is met in the failing calls alone
FEWEST_RIGHT_ROWS = 12  # that a mistake explains which would change rows that are right
MOST_CALLS = 4000  # of the reference, for one answer
MOST_RUNS = 3  # of the wrong ones, and half as many right ones, to tell how near a mistake is
MOST_BASES = 3  # mistakes that explain most, and as many that come nearest, to which a second one is added

UNVIEWABLE = (RuntimeError, TypeError, AttributeError, IndexError, ValueError)
CANNOT = (*UNVIEWABLE, KeyError, ZeroDivisionError, RegardError)
RAISED = object()  # in the place of a result: with these choices the call cannot be made

Choices = Mapping[str, str]

# What a check says of a result that is drawn at random, and checks that say less than others of a mistake.
BY_CHANCE = "from call to call"
LAST = ("device", "float16", "bfloat16", "float64")


@dataclass(frozen=True, eq=False)
class Named:
    """The mistakes that an answer made; not `certain` when only the pattern of failed checks says so."""

    mistakes: tuple[Mistake, ...]
    certain: bool
    where: str = ""  # "in the failing calls": others are right, which the mistake would change too
    factor: str = ""  # of a result that is the right one times a number

    @property
    def sentence(self) -> str:
        """What a student reads."""
        names = " and ".join(mistake.name for mistake in self.mistakes) + self.factor
        symptoms = " ".join(self._symptoms)
        if not self.certain:
            return f"Likely cause: {names}. {symptoms}".strip()
        start = f"{self.where} your output".strip().capitalize()
        return f"{start} is that of this mistake: {names}. {symptoms}".strip()

    @property
    def _symptoms(self) -> list[str]:
        """What is seen of the mistakes; where one alone leaves something right, two may not."""
        symptoms = [mistake.hints[0] for mistake in self.mistakes]
        alone = len(symptoms) == 1
        return [symptom for symptom in symptoms if alone or not symptom.startswith("Right")]


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What is known about a failing answer: names, or else what comes nearest."""

    named: tuple[Named, ...] = ()
    nearest: str = ""


@dataclass(eq=False)
class Seen:
    """What an answer gave in one run, beside what is right there."""

    run: Run
    value: Tree
    wrong: Tensor  # for each row that counts, whether it is wrong
    counts: Tensor  # for each row, whether it tells anything about a mistake


@dataclass(frozen=True, eq=False)
class Agreement:
    """How a mistake's results compare with an answer's."""

    mistake: Mistake
    explained: int  # wrong rows that it gives too
    share: float  # of what either has wrong, as a mean over runs


def plain_answer(exercise: Exercise, source: str) -> Answer:
    """The message of an answer that is one source text of ours."""
    last = dict.fromkeys(exercise.names, -1)
    return Answer([Cell("", source)], last, exercise.is_class, exercise.drive)


def best_verdict(plan: Plan, outcomes: Outcomes) -> tuple[dict[str, str], Verdict]:
    """The choice of conventions under which the fewest checks fail, ours where it makes no difference."""
    verdicts = ((choices, judged(plan, outcomes, choices)) for choices in plan.told_apart)
    best = next(verdicts)
    while best[1].failed and (other := next(verdicts, None)) is not None:
        best = other if len(other[1].failed) < len(best[1].failed) else best
    return best


class Space:
    """The choices of one exercise on the calls of one plan; what a single mistake gives is kept."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.mistakes = [mistake for mistake in plan.exercise.mistakes if mistake.choices]
        # Results that hang on chance, which a judge looks at, tell nothing by their numbers.
        runs = [
            run
            for run in plan.runs
            if run.kind in ("value", "probe")
            and not run.item.raises
            and not (isinstance(run.item, Probe) and run.item.judge and run.case.train)
        ]
        self.runs = sorted(runs, key=lambda run: sum(tensor.numel() for tensor in run.tensors))
        self.tolerance = 2 * TOLERANCE["float32"]
        self._known: dict[tuple[Any, ...], Any] = {}

    def result(self, run: Run, conventions: Choices, mistakes: Sequence[Mistake] = ()) -> Any:
        """What the reference gives with these choices, as the exercise views it, or RAISED."""
        return self.view(run, self.raw(run, conventions, mistakes))

    def raw(self, run: Run, conventions: Choices, mistakes: Sequence[Mistake] = ()) -> Any:
        """What the reference itself gives with these choices, or RAISED."""
        choices = dict(conventions)
        for mistake in mistakes:
            choices |= mistake.choices
        form = choices.pop(FORM, "")
        key = (run.case, *choices.items())
        try:
            value = self._known.get(key, RAISED)
            if value is RAISED:
                with torch.no_grad():
                    value = self.plan.checks.reference(run.case, **choices)
                if len(mistakes) < 2:
                    self._known[key] = value
            return FORMS[form](value)
        except NameError as error:  # of a formula: the exercise is wrong, not the answer
            raise LoadError(f"{self.plan.exercise.id}, with {choices}: {error}") from error
        except CANNOT:
            return RAISED

    def view(self, run: Run, value: Tree) -> Tree:
        """A result as the exercise compares it, or as it is where it cannot be seen so."""
        try:
            return value if value is RAISED else self.plan.view(run, value)
        except UNVIEWABLE:
            return value

    @cached_property
    def settled(self) -> dict[int, Tensor]:
        """For each row of a run, whether every convention asks for the same: how a row that sees nothing is
        filled, say, tells nothing about a mistake.
        """
        settled = {}
        for run in self.runs:
            ours, *others = (self.result(run, choices) for choices in self.plan.choices())
            rows = torch.ones_like(equal_rows(ours, ours, self.tolerance))
            for other in others:
                rows = rows & equal_rows(ours, other, self.tolerance)
            parts = rows.split([n_row(leaf) for _, leaf in leaves(ours)] or [len(rows)])
            # Where a convention changes most of a result, all of that counts.
            rows = torch.cat([part | (2 * part.sum() < len(part)) for part in parts])
            settled[run.id] = rows & _asked(ours)
        return settled


def _asked(result: Tree) -> Tensor:
    """For each row of a reference's result, whether it holds nothing that may be anything."""

    def without(leaf: Any) -> Any:
        floating = isinstance(leaf, Tensor) and leaf.is_floating_point()
        return leaf.masked_fill(leaf == ANYTHING, 0.0) if floating else leaf

    return equal_rows(result, mapped(result, without), 1.0)


class Search:
    """The mistakes that explain one answer, looked for under a limit of calls."""

    def __init__(self, space: Space, outcomes: Outcomes, conventions: Choices) -> None:
        self.space, self.conventions = space, conventions
        self.left = MOST_CALLS
        self.failed: list[Run] = []  # runs without a result
        seen: list[Seen] = []
        settled: list[Tensor] = []
        expected = space.plan.expected(conventions)
        for run in space.runs:
            error = outcomes[run.id].error
            if error is not None:
                self.failed += [run] if error.kind != "missing" else []
                continue
            value, want = (space.view(run, tree.value) for tree in (outcomes[run.id], expected[run.id]))
            wrong, counts = ~equal_rows(value, want, space.tolerance / 2), _asked(want)
            if counts.shape != wrong.shape:
                counts = torch.ones_like(wrong)
            seen.append(Seen(run, value, wrong & counts, counts))
            known = space.settled[run.id]
            settled.append(known & counts if known.shape == wrong.shape else counts)
        # Where what is wrong lies only where conventions differ, all rows count.
        if any(bool((one.wrong & rows).any()) for one, rows in zip(seen, settled, strict=True)):
            for one, rows in zip(seen, settled, strict=True):
                one.wrong, one.counts = one.wrong & rows, rows
        self.wrong = [one for one in seen if bool(one.wrong.any())]
        others = [one for one in seen if one not in self.wrong]
        self.seen = [*self.wrong, *others]
        # The plainest call, without lengths or a mask say, is wrong by fewer mistakes than others.
        plainest = sorted(self.wrong, key=lambda one: len(one.run.case.args) + len(one.run.case.kwargs))[:1]
        more = [one for one in self.wrong if one not in plainest]
        self.telling = [*plainest, *more[: MOST_RUNS - 1], *others[: MOST_RUNS // 2]]
        self.floating = any(len(numbers(one.value)) for one in self.wrong)
        # One number everywhere tells little: 0 only that it is 0, another no two mistakes.
        tensors = [leaf for one in seen for _, leaf in leaves(one.value) if isinstance(leaf, Tensor)]
        several = [leaf.reshape(-1) for leaf in tensors if leaf.numel() > 1]
        self.constant = bool(several) and all(bool((leaf == leaf[0]).all()) for leaf in several)
        self.zero = self.constant and not any(bool(leaf.any()) for leaf in tensors)

    def _compared(
        self, mistakes: Sequence[Mistake], conventions: Choices, runs: Sequence[Seen], failed: Sequence[Run]
    ) -> Iterator[tuple[int, int]]:
        """Run by run, how many wrong rows the mistakes give too, of how many that either has wrong."""
        # An answer that raises where these mistakes would not made another one too.
        for run in failed:
            yield 0, int(self._result(run, conventions, mistakes) is not RAISED)
        for seen in runs:
            result = self._result(seen.run, conventions, mistakes)
            if result is RAISED:
                yield 0, 1
                continue
            rows = equal_rows(seen.value, result, self.space.tolerance)
            yield int((seen.wrong & rows).sum()), int((seen.wrong | (~rows & seen.counts)).sum())

    def _result(self, run: Run, conventions: Choices, mistakes: Sequence[Mistake]) -> Any:
        self.left -= 1  # kept or not, so that what is named does not hang on which answers came before
        return self.space.result(run, conventions, mistakes)

    def exact(self, candidates: Iterable[tuple[tuple[Mistake, ...], Choices]]) -> Named | None:
        """The first mistakes, with conventions, that give the answer's numbers in every row of every run."""
        for mistakes, conventions in candidates:
            if self.left <= 0:
                return None
            compared = self._compared(mistakes, conventions, self.seen, self.failed)
            if all(both == either for both, either in compared):
                return Named(mistakes, True)
        return None

    def agreement(self, mistake: Mistake, runs: Sequence[Seen], failed: Sequence[Run]) -> Agreement:
        """How the results compare in some runs, and in some where the answer has none."""
        compared = list(self._compared([mistake], self.conventions, runs, failed))
        shares = [both / either for both, either in compared if either]
        share = sum(shares) / len(shares) if shares else 1.0
        return Agreement(mistake, sum(both for both, _ in compared), share)

    def distance(self, agreement: Agreement) -> float:
        """How far a mistake's numbers lie from the answer's, over the runs that tell most."""
        choices, mistakes = self.conventions, [agreement.mistake]
        return sum(apart(one.value, self.space.result(one.run, choices, mistakes)) for one in self.telling)

    @cached_property
    def singles(self) -> list[Agreement]:
        """Every mistake but functions of the result, the nearest first, by the runs that tell most."""
        mistakes = [mistake for mistake in self.space.mistakes if not _is_value(mistake)]
        near = [self.agreement(mistake, self.telling, self.failed[:MOST_RUNS]) for mistake in mistakes]
        return sorted(near, key=lambda agreement: (-agreement.share, self.distance(agreement)))

    def factor(self) -> str:
        """By which numbers the wrong results are multiples of the right ones, in words, if they all are."""
        for first_part, where in ((False, ""), (True, " in the first part")):
            factors = [self._factor(seen, first_part) for seen in self.wrong]
            texts = list(dict.fromkeys(f"{factor:.3g}" for factor in factors if factor))
            if texts and None not in factors and not self.failed:
                more = ", ..." if len(texts) > MOST_RUNS else ""
                return f": {', '.join(texts[:MOST_RUNS])}{more}{where}"
        return ""

    def _factor(self, seen: Seen, first_part: bool) -> float | None:
        """The factor in one call: 0 where too few numbers tell, None where there is none."""
        right = self.space.result(seen.run, self.conventions)
        trees = [seen.value, right]
        if first_part:
            trees = [tree[0] if isinstance(tree, list | tuple) and len(tree) > 1 else None for tree in trees]
        mine, ours = map(numbers, trees)
        if mine.shape != ours.shape:
            return None
        telling = mine.isfinite() & ours.isfinite() & (ours != 0)
        if int(telling.sum()) < FEWEST_ROWS:
            return 0.0
        factor = float(mine[telling] @ ours[telling] / (ours[telling] @ ours[telling]))
        scaled = changed_numbers(right, lambda leaf: leaf * factor, first_part=first_part)
        rows = equal_rows(seen.value, scaled, self.space.tolerance)
        return None if bool((~rows & seen.counts).any()) else factor


def numbers(tree: Tree) -> Tensor:
    """The floating numbers of a result in a row."""
    tensors = [leaf for _, leaf in leaves(tree) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    return torch.cat([torch.empty(0, dtype=torch.float64), *(leaf.double().reshape(-1) for leaf in tensors)])


def _is_value(mistake: Mistake) -> bool:
    """Whether it is a function of the right numbers."""
    return mistake.choices.get(FORM, "").removesuffix(" of the first part") in (*VALUES, TIMES)


def diagnosis(space: Space, outcomes: Outcomes, choices: Choices, verdict: Verdict) -> Diagnosis:
    """The mistakes that explain a failing answer, or what comes nearest."""
    by_pattern = _by_pattern(space.plan.exercise, verdict)
    misfits = tuple(mistake for mistake in by_pattern if "parameters" in mistake.fails)
    at_random = any(outcome.unfit.yours for outcome in outcomes.values())
    if misfits or at_random:  # weights of the answer that are not ours: its numbers tell nothing
        return Diagnosis((Named(misfits[:1], False),) if misfits else ())
    chance = [mistake for mistake in by_pattern if BY_CHANCE in mistake.fails.values()]
    if chance:  # numbers that are drawn tell nothing
        return Diagnosis((Named(tuple(chance[:1]), False),))
    search = Search(space, outcomes, choices)
    # Chance, as in dropout, gives other numbers for the same mistake; wrong numbers speak against it.
    wrong = [*(seen.run for seen in search.wrong), *search.failed]
    if wrong:  # then a check of that kind must be among those that speak for a mistake
        names = {item.name for item in space.plan.checks.items}
        by_pattern = tuple(mistake for mistake in by_pattern if names & set(mistake.fails))
    if by_pattern and not any(run.item.kind == "wrong" for run in wrong):
        return Diagnosis((Named(by_pattern[:1], False),))
    if not search.wrong:
        return Diagnosis()
    exact = _exact(search)
    if exact is not None:
        return Diagnosis((exact,))
    return Diagnosis() if search.constant else _near(search)


def _exact(search: Search) -> Named | None:
    """One mistake, also beside another convention; the right result times a number; then two."""
    space, ours = search.space, search.conventions
    beside = [
        other
        for other in space.plan.choices()
        if sum(other[name] != choice for name, choice in ours.items()) == 1
    ]
    alone = [mistake for mistake in space.mistakes if not search.zero or FORM in mistake.choices]
    if exact := search.exact(((mistake,), choices) for choices in (ours, *beside) for mistake in alone):
        return exact
    times = [mistake for mistake in space.mistakes if mistake.choices.get(FORM) == TIMES]
    factor = search.factor() if times else ""
    if factor or search.constant:
        return Named(tuple(times[:1]), True, factor=factor) if factor else None
    near, close = search.singles, sorted(search.singles, key=search.distance)
    explain = [agreement for agreement in near if agreement.explained]
    bases = list(dict.fromkeys([*explain[:MOST_BASES], *close[:MOST_BASES]]))
    if exact := search.exact((two, choices) for choices in (ours, *beside) for two in _pairs(bases, near)):
        return exact
    # Two that both change every number explain nothing alone. Few words or booleans agree by chance.
    rest = [agreement for agreement in close if agreement not in bases]  # pairs with a base were tried
    return search.exact((two, ours) for two in _pairs(rest, rest)) if search.floating else None


def _pairs(bases: Sequence[Agreement], others: Sequence[Agreement]) -> Iterator[tuple[Mistake, ...]]:
    """Two mistakes that decide different things, one of them a base."""
    tried = set()
    for first, second in itertools.product(bases, others):
        pair = frozenset((first, second))
        if pair not in tried and not set(first.mistake.choices) & set(second.mistake.choices):
            tried.add(pair)
            yield first.mistake, second.mistake


def _near(search: Search) -> Diagnosis:
    """A mistake that is met in all failing calls or in most of what is wrong, or the nearest in words."""
    near = [agreement for agreement in search.singles if agreement.explained]
    # A second mistake may show in calls that only fragile answers fail: the others tell the first.
    firm = [seen for seen in search.wrong if seen.run.item.kind == "wrong"]
    firm_failed = [run for run in search.failed if run.item.kind == "wrong"]
    for wrong, failed in ((search.wrong, search.failed), (firm, firm_failed)):
        for agreement in near if wrong else ():
            failing = search.agreement(agreement.mistake, wrong, failed)
            if failing.share == 1 and failing.explained >= FEWEST_ROWS:
                return Diagnosis((Named((agreement.mistake,), True, "in the failing calls"),))
    n_wrong = sum(int(seen.wrong.sum()) for seen in search.wrong)
    if not near or not search.floating:
        return Diagnosis()
    n_zero = sum(
        int((seen.wrong & equal_rows(seen.value, changed_numbers(seen.value, torch.zeros_like), 0.0)).sum())
        for seen in search.wrong
    )
    if 2 * n_zero > n_wrong:  # zeros agree with whatever gives zeros
        return Diagnosis(nearest=f"{n_zero} of the {n_wrong} wrong rows of your output are 0.")
    # Random numbers do not agree by chance: a mistake met in most rows was made, and another beside it.
    best = search.agreement(near[0].mistake, search.seen, search.failed)
    if best.share >= MOST:
        return Diagnosis((Named((best.mistake,), True, "in most failing calls"),))
    of_a_part = FORM not in best.mistake.choices  # a form is of the whole result
    if of_a_part and best.explained == n_wrong >= FEWEST_RIGHT_ROWS and not search.failed:
        return Diagnosis((Named((best.mistake,), True, "in the part that is wrong"),))
    if best.explained < NEAR * n_wrong:
        return Diagnosis()
    names = dict.fromkeys(seen.run.item.name for seen in search.seen if seen not in search.wrong)
    right = f" Correct for: {'; '.join(names)}." if names else ""
    return Diagnosis(
        nearest=f"No known mistake gives your output. Nearest: {best.mistake.name}, which explains "
        f"{best.explained} of {n_wrong} wrong rows.{right}"
    )


def _by_pattern(exercise: Exercise, verdict: Verdict) -> tuple[Mistake, ...]:
    """The mistakes whose checks fail, with what they say; those that another device or dtype shows last."""
    messages = {
        check.name: check.message
        for check in verdict.checks
        if not check.passed and check.message != NOT_TRIED
    }
    found = [
        mistake
        for mistake in exercise.mistakes
        if mistake.fails
        and all(check in messages and says in messages[check] for check, says in mistake.fails.items())
    ]
    return tuple(sorted(found, key=lambda mistake: any(check in LAST for check in mistake.fails)))
