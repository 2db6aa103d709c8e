"""Which calls check an exercise, and what they must return."""

import itertools
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from regard.checking.child.messages import Order, Outcome, Tree, gradients, leaves
from regard.checking.compare import GRADIENT_TOLERANCE, TOLERANCE, off, same
from regard.checking.forms import changed_numbers
from regard.checking.spec import Exercise
from regard.checking.trials import Case, Draw, Impossible, Item, Trial
from regard.errors import ArgumentError, RegardError

# The ways to repeat a call, as their checks are called; child/harness.py makes them.
VARIANTS = ("float64", "float16", "bfloat16", "non-contiguous inputs", "called twice", "device")

# What a task does not ask for unless it says so: an answer that fails it gets a note.
PORTABLE = ("float16", "bfloat16", "device")

# A draw on which rounding moves the reference by more than this part of the tolerance is drawn again.
MOST_ROUNDING = 0.1
MOST_DRAWS = 8
FLOAT32_ROUNDING = 2.0**-23


# What a reference raises on a call that it cannot make.
CANNOT_WORK = (RegardError, RuntimeError, ValueError, TypeError, IndexError, KeyError)


@dataclass(frozen=True, eq=False)
class Run:
    """One call that a child makes."""

    id: int
    kind: str  # "value", "probe", "gradients", or one of VARIANTS
    item: Item
    case: Case

    @property
    def dtype(self) -> str:
        """The floating dtype of its inputs."""
        return self.kind if self.kind in TOLERANCE else "float32"

    @property
    def tensors(self) -> list[Tensor]:
        """Those of its arguments and weights."""
        return [*tensors_of(self.case), *self.case.weights.values()]


class Plan:
    """All runs of one exercise for one seed, and their expected results under each choice of conventions.

    An `empty` plan has no runs yet: they are added with `add_trial`. In a `portable` one another device and
    half precision count, whatever the task asks for. An `offer` is one of the exercise's ways to make calls.
    """

    def __init__(
        self,
        exercise: Exercise,
        seed: int,
        *,
        empty: bool = False,
        portable: bool = False,
        offer: Mapping[str, str] | None = None,
    ) -> None:
        self.exercise, self.seed = exercise, seed
        self.offer = exercise.offers[0] if offer is None else offer
        # Kinds of runs whose failure is a note.
        self.noted = () if portable else tuple(kind for kind in PORTABLE if kind not in exercise.counts)
        self.runs: list[Run] = []
        self.orders: list[Order] = []  # what a child is told to do
        self._expected: dict[tuple[str, ...], dict[int, Outcome]] = {}
        self._worked: dict[tuple[Any, ...], Outcome] = {}
        self.checks = exercise.checks
        self.tolerance = TOLERANCE["float32"]
        for trial in () if empty else self.checks.trials:
            self.add_trial(trial)
        for probe in () if empty else self.checks.probes:
            for case in self._well_conditioned(probe):
                self._add("probe", probe, case)

    def _draw(self, item: Item, attempt: int = 0) -> Draw:
        """Each trial has its own numbers, the same for every answer checked with this seed."""
        seed = self.seed * 1_000_003 + zlib.crc32(item.name.encode())
        seed += attempt * 715_827_883  # torch looks at the last 32 bits
        return Draw(item.sizes, seed, self.offer)

    def _well_conditioned(self, item: Item) -> tuple[Case, ...]:
        """Draw the calls of a trial or probe, again where rounding alone would move its results.

        Of MOST_DRAWS draws that are all ill-conditioned, as those of a trial that is about rounding may be,
        the best is taken.
        """
        first = item.make(self._draw(item))
        if item.raises:
            return first
        best, least = first, self._rounding(item, first)
        for attempt in range(1, MOST_DRAWS):
            if least <= MOST_ROUNDING:
                break
            cases = item.make(self._draw(item, attempt))
            rounding = self._rounding(item, cases)
            if rounding < least:
                best, least = cases, rounding
        return best

    def _rounding(self, item: Item, cases: Sequence[Case]) -> float:
        """Return how far float32 moves the reference's results in these calls, in tolerances."""
        ours = self.choices()[0]
        return max(
            (self.condition(Run(-1, "value", item, case), ours) / self.tolerance for case in cases),
            default=0.0,
        )

    def condition(self, run: Run, choices: Mapping[str, str], *, inputs_too: bool = False) -> float:
        """Return how far rounding moves the reference's result and gradients, as part of their size.

        Its float32 result is compared with that in float64. Where a result is made of whole numbers, as
        tokens are, and where `inputs_too` asks for it, so is one of inputs that are rounded in their last
        digit: how far any right answer may be off.
        """
        moved: list[Outcome] = []
        with suppress(*CANNOT_WORK):  # said where the result is needed
            exact = self._worked_out(run, choices)
            moved.append(self._reference(run.case, choices, _graded(run.item)))
            if inputs_too or any(_whole_numbers(leaf) for _, leaf in leaves(exact.value)):
                moved += [self._reference(case, choices, _graded(run.item)) for case in _nudged(run.case)]
        most = 0.0
        for other in moved:
            values = [self.view(run, outcome.value) for outcome in (exact, other)]
            most = max(most, off(*values), off(exact.grads, other.grads) / GRADIENT_TOLERANCE)
        return most

    def add_trial(self, trial: Trial, *, brief: bool = False) -> None:
        """Add the runs of one trial; `brief` for its value alone."""
        (case,) = trial.make(self._draw(trial)) if brief else self._well_conditioned(trial)
        self._add("value", trial, case, largest=bool(trial.most_numbers))
        if not brief and not trial.raises:
            for kind in (*(["gradients"] if trial.grad else []), *(VARIANTS if trial.variants else ())):
                self._add(kind, trial, case)

    def _add(self, kind: str, item: Item, case: Case, *, largest: bool = False) -> None:
        self.orders.append(Order(len(self.runs), case, kind, largest=largest))
        self.runs.append(Run(len(self.runs), kind, item, case))

    def choices(self) -> list[dict[str, str]]:
        """Every combination of conventions, ours first; those that draws depend on are as offered."""
        conventions = self.exercise.conventions
        ways = itertools.product(
            *([self.offer[name]] if name in self.offer else choices for name, choices in conventions.items())
        )
        return [dict(zip(conventions, way, strict=True)) for way in ways]

    @cached_property
    def told_apart(self) -> list[dict[str, str]]:
        """The combinations whose results differ in some call from those of every one before, ours first."""
        apart: list[tuple[list[Any], dict[str, str]]] = []
        runs = [run for run in self.runs if run.kind in ("value", "probe") and not run.item.raises]
        for choices in self.choices():
            with torch.no_grad():
                values = [self.checks.reference(run.case, **choices) for run in runs]
            if not any(same(values, other, 1e-9) for other, _ in apart):
                apart.append((values, choices))
        return [choices for _, choices in apart]

    def expected(self, choices: Mapping[str, str]) -> dict[int, Outcome]:
        """What each run must give, by its id."""
        key = tuple(choices.values())
        if key not in self._expected:
            self._expected[key] = {run.id: self._answer(run, choices) for run in self.runs}
        return self._expected[key]

    def _answer(self, run: Run, choices: Mapping[str, str]) -> Outcome:
        if run.item.raises:
            return Outcome()
        try:
            return self._worked_out(run, choices)
        except CANNOT_WORK as error:
            raise ArgumentError(
                f"{self.exercise.id}: the reference fails on {run.item.name!r}: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _worked_out(self, run: Run, choices: Mapping[str, str]) -> Outcome:
        """Return the reference's result in float64; the runs of one call that have its numbers share it."""
        # What was drawn in float32 is the same number in float64.
        dtype = "float32" if run.dtype == "float64" else run.dtype
        key = (run.case, dtype, *choices.values())
        if key not in self._worked:
            case = as_float64(run.case, dtype)
            self._worked[key] = self._reference(case, choices, _graded(run.item) and dtype == "float32")
        return self._worked[key]

    def _reference(self, case: Case, choices: Mapping[str, str], graded: bool) -> Outcome:
        """Return the reference's result on a copy of the case, with gradients where they are asked for."""
        case = deepcopy(case)
        inputs = {f"input {index}": tensor for index, tensor in enumerate(tensors_of(case))} | case.weights
        wanted = {
            name: tensor.requires_grad_(True)
            for name, tensor in (inputs.items() if graded else ())
            if tensor.is_floating_point()
        }
        with torch.set_grad_enabled(bool(wanted)):
            value = self.checks.reference(case, **choices)
            grads = gradients(value, wanted)
        grads = {
            name: torch.zeros_like(wanted[name]) if grad is None else grad for name, grad in grads.items()
        }
        return Outcome(value=changed_numbers(value, Tensor.detach), grads=grads)

    def view(self, run: Run, value: Tree) -> Tree:
        """A result as the exercise compares it."""
        return value if self.checks.view is None else self.checks.view(run.case, value)


def shrunk_sizes(sizes: Mapping[str, int]) -> list[dict[str, int]]:
    """Smaller sizes to try, the smallest first: of one dimension, of two and of all."""
    tries = [{**sizes, word: small} for word, size in sizes.items() for small in (1, 2, 3) if small < size]
    tries += [{word: min(small, size) for word, size in sizes.items()} for small in (1, 2, 3)]
    for two in itertools.combinations(sizes, 2):
        tries += [{**sizes, **{word: min(small, sizes[word]) for word in two}} for small in (2, 1)]
    unique = {tuple(smaller.items()): smaller for smaller in tries if smaller != dict(sizes)}
    return sorted(unique.values(), key=lambda smaller: sum(smaller.values()))


def shrunk_plan(whole: Plan, trial: Trial, sizes: Mapping[str, int]) -> Plan:
    """A plan that makes a trial of another at smaller and smaller sizes, and nothing else."""
    plan = Plan(whole.exercise, whole.seed, empty=True, offer=whole.offer)
    for smaller in shrunk_sizes(sizes):
        try:
            plan.add_trial(replace(trial, sizes=smaller), brief=True)
        except (Impossible, RegardError, RuntimeError, ValueError, IndexError, ZeroDivisionError):
            continue  # sizes that the trial cannot be made of
    return plan


def _graded(item: Item) -> bool:
    return isinstance(item, Trial) and item.grad


def _whole_numbers(leaf: Any) -> bool:
    """Return whether a leaf of a result holds whole numbers or booleans, which cannot be a little off."""
    return not leaf.is_floating_point() if isinstance(leaf, Tensor) else isinstance(leaf, int)


def _nudged(case: Case) -> Iterator[Case]:
    """Yield the case in float64 with each number moved by the rounding of float32, up or down at random."""
    generator = torch.Generator().manual_seed(5)

    def nudge(leaf: Tensor) -> Tensor:
        signs = torch.randint(0, 2, leaf.shape, generator=generator) * 2 - 1
        return leaf * (1 + FLOAT32_ROUNDING * signs)

    for _ in range(3):
        yield _changed(as_float64(case, "float32"), nudge)


def tensors_of(case: Case) -> list[Tensor]:
    """The tensors among the arguments, in the order in which the harness meets them."""
    return [leaf for _, leaf in leaves([case.args, case.kwargs]) if isinstance(leaf, Tensor)]


def as_float64(case: Case, dtype: str) -> Case:
    """The case in float64, with the numbers that are left after rounding to `dtype`."""

    def rounded(leaf: Tensor) -> Tensor:
        return leaf.to(getattr(torch, dtype)).double()

    return _changed(deepcopy(case), rounded)


def _changed(case: Case, change: Callable[[Tensor], Tensor]) -> Case:
    """Return the case with its floating tensors changed."""
    changed = {name: changed_numbers(getattr(case, name), change) for name in ("args", "kwargs", "weights")}
    return replace(case, **changed)
