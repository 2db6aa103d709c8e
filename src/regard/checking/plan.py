"""Which calls check an exercise, and what they must return."""

import itertools
import zlib
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from regard.checking.child.messages import Order, Outcome, Tree, gradients, leaves
from regard.checking.compare import TOLERANCE, same
from regard.checking.forms import changed_numbers
from regard.checking.spec import Exercise
from regard.checking.trials import Case, Draw, Impossible, Item, Trial
from regard.errors import ArgumentError, RegardError

# The ways to repeat a call, as their checks are called; child/harness.py makes them.
VARIANTS = ("float64", "float16", "bfloat16", "non-contiguous inputs", "called twice", "device")


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

    An `empty` plan has no runs yet: they are added with `add_trial`. An `offer` is one of the exercise's.
    """

    def __init__(
        self, exercise: Exercise, seed: int, *, empty: bool = False, offer: Mapping[str, str] | None = None
    ) -> None:
        self.exercise, self.seed = exercise, seed
        self.offer = exercise.offers[0] if offer is None else offer
        self.runs: list[Run] = []
        self.orders: list[Order] = []  # what a child is told to do
        self._expected: dict[tuple[str, ...], dict[int, Outcome]] = {}
        self.checks = exercise.checks
        for trial in () if empty else self.checks.trials:
            self.add_trial(trial)
        for probe in () if empty else self.checks.probes:
            for case in probe.make(self._draw(probe)):
                self._add("probe", probe, case)

    def _draw(self, item: Item) -> Draw:
        """Each trial has its own numbers, the same for every answer checked with this seed."""
        return Draw(item.sizes, self.seed * 1_000_003 + zlib.crc32(item.name.encode()), self.offer)

    def add_trial(self, trial: Trial, *, brief: bool = False) -> None:
        """Add the runs of one trial; `brief` for its value alone."""
        (case,) = trial.make(self._draw(trial))
        self._add("value", trial, case, largest=bool(trial.most_numbers))
        if not brief and not trial.raises:
            for kind in (*(["gradients"] if trial.grad else []), *(VARIANTS if trial.variants else ())):
                self._add(kind, trial, case)

    def _add(self, kind: str, item: Item, case: Case, *, largest: bool = False) -> None:
        self.orders.append(Order(len(self.runs), case, kind, largest))
        self.runs.append(Run(len(self.runs), kind, item, case))

    def choices(self) -> list[dict[str, str]]:
        """Every combination of conventions, ours first; those that draws depend on are as they were offered."""
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
        case = as_float64(run.case, run.dtype)
        inputs = {f"input {index}": tensor for index, tensor in enumerate(tensors_of(case))} | case.weights
        graded = inputs.items() if run.kind == "gradients" else ()
        wanted = {name: tensor.requires_grad_(True) for name, tensor in graded if tensor.is_floating_point()}
        try:
            with torch.set_grad_enabled(bool(wanted)):
                value = self.checks.reference(case, **choices)
                grads = gradients(value, wanted)
        except (RegardError, RuntimeError, ValueError, TypeError, IndexError, KeyError) as error:
            raise ArgumentError(
                f"{self.exercise.id}: the reference fails on {run.item.name!r}: "
                f"{type(error).__name__}: {error}"
            ) from error
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


def tensors_of(case: Case) -> list[Tensor]:
    """The tensors among the arguments, in the order in which the harness meets them."""
    return [leaf for _, leaf in leaves([case.args, case.kwargs]) if isinstance(leaf, Tensor)]


def as_float64(case: Case, dtype: str) -> Case:
    """The case in float64, with the numbers that are left after rounding to `dtype`."""

    def rounded(leaf: Tensor) -> Tensor:
        return leaf.to(getattr(torch, dtype)).double()

    copy = deepcopy(case)
    changed = {name: changed_numbers(getattr(copy, name), rounded) for name in ("args", "kwargs", "weights")}
    return replace(copy, **changed)
