"""Which calls check an exercise, and what they must return."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from regard.checking.child.messages import Order, Outcome, leaves, mapped, weighted_sum
from regard.checking.compare import same
from regard.checking.spec import Exercise
from regard.checking.trials import Case, Draw, Impossible, Item, Trial
from regard.errors import ArgumentError, RegardError

# name of the check -> options of the run
VARIANTS: dict[str, dict[str, Any]] = {
    "float64": {"dtype": "float64"},
    "float16": {"dtype": "float16"},
    "bfloat16": {"dtype": "bfloat16"},
    "non-contiguous inputs": {"strided": True},
    "called twice": {"twice": True},
    "device": {"device": "meta"},
}


@dataclass(frozen=True, eq=False)
class Run:
    """One call that a child makes."""

    id: int
    kind: str  # "value", "gradients", "probe", or a key of VARIANTS
    item: Item
    case: Case
    order: Order  # what the child is told

    @property
    def dtype(self) -> str:
        """The floating dtype of its inputs."""
        return self.order.dtype or "float32"


class Plan:
    """All runs of one exercise for one seed, and their expected results under each choice of conventions.

    An `empty` plan has no runs yet: they are added with `add_trial`.
    """

    def __init__(self, exercise: Exercise, seed: int, *, empty: bool = False) -> None:
        self.exercise, self.seed = exercise, seed
        self.runs: list[Run] = []
        self._expected: dict[tuple[str, ...], dict[int, Outcome]] = {}
        self.checks = exercise.checks
        for trial in () if empty else self.checks.trials:
            self.add_trial(trial)
        for probe in () if empty else self.checks.probes:
            for case in probe.make(self._draw(probe)):
                self._add("probe", probe, case)

    @property
    def orders(self) -> list[Order]:
        """What a child is told to do."""
        return [run.order for run in self.runs]

    def _draw(self, item: Item) -> Draw:
        """Each trial has its own numbers, the same for every answer checked with this seed."""
        return Draw(item.sizes, self.seed * 1_000_003 + zlib.crc32(item.name.encode()))

    def add_trial(self, trial: Trial, *, brief: bool = False) -> None:
        """Add the runs of one trial; `brief` for its value alone."""
        case = trial.make(self._draw(trial))
        self._add("value", trial, case, largest=trial.most_numbers is not None)
        if brief or trial.raises:
            return
        if trial.grad:
            self._add("gradients", trial, case, gradients=True)
        if trial.variants:
            for name, options in VARIANTS.items():
                self._add(name, trial, case, **options)

    def _add(self, kind: str, item: Item, case: Case, **options: Any) -> None:
        id = len(self.runs)
        self.runs.append(Run(id, kind, item, case, Order(id, case, seed=1 + id, **options)))

    def choices(self) -> list[dict[str, str]]:
        """Every combination of conventions, ours first."""
        conventions = self.exercise.conventions
        return [
            dict(zip([convention.name for convention in conventions], combination, strict=True))
            for combination in itertools.product(*(convention.choices for convention in conventions))
        ]

    @cached_property
    def told_apart(self) -> list[dict[str, str]]:
        """The combinations whose results differ in some call from those of every one before, ours first."""
        results: list[list[Any]] = []
        apart: list[dict[str, str]] = []
        for choices in self.choices():
            with torch.no_grad():
                values = [
                    self.checks.reference(run.case, **choices)
                    for run in self.runs
                    if run.kind in ("value", "probe") and not run.item.raises
                ]
            if not any(same(values, other, 1e-9) for other in results):
                results.append(values)
                apart.append(choices)
        return apart

    def expected(self, choices: Mapping[str, str]) -> dict[int, Outcome]:
        """What each run must give, by its id."""
        key = tuple(choices.values())
        if key not in self._expected:
            self._expected[key] = {run.id: self._answer(run, choices) for run in self.runs}
        return self._expected[key]

    def _answer(self, run: Run, choices: Mapping[str, str]) -> Outcome:
        item = run.item
        if item.raises:
            return Outcome()
        case = as_float64(run.case, run.dtype)
        try:
            if run.kind == "gradients":
                return self._gradients(case, choices)
            with torch.no_grad():
                return Outcome(value=self.checks.reference(case, **choices))
        except (RegardError, RuntimeError, ValueError, TypeError, IndexError, KeyError) as error:
            raise ArgumentError(
                f"{self.exercise.id}: the reference fails on {item.name!r}: {type(error).__name__}: {error}"
            ) from error

    def _gradients(self, case: Case, choices: Mapping[str, str]) -> Outcome:
        floats = {
            f"input {index}": tensor
            for index, tensor in enumerate(tensors_of(case))
            if tensor.is_floating_point()
        } | case.weights
        for tensor in floats.values():
            tensor.requires_grad_(True)
        value = self.checks.reference(case, **choices)
        total = weighted_sum(value)
        by_name: dict[str, Tensor | None] = {}
        if total is not None:
            grads = torch.autograd.grad(total, list(floats.values()), allow_unused=True)
            for (name, tensor), grad in zip(floats.items(), grads, strict=True):
                by_name[name] = torch.zeros_like(tensor) if grad is None else grad
        detached = mapped(value, lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf)
        return Outcome(value=detached, grads=by_name)


def shrunk_sizes(sizes: Mapping[str, int]) -> list[dict[str, int]]:
    """Smaller sizes to try, the smallest first."""
    tries = []
    for word, size in sizes.items():
        tries += [{**sizes, word: smaller} for smaller in (1, 2, 3) if smaller < size]
    for size in (1, 2, 3):
        tries.append({word: min(size, old) for word, old in sizes.items()})
    for first, second in itertools.combinations(sizes, 2):
        tries.append({**sizes, first: min(2, sizes[first]), second: min(2, sizes[second])})
        tries.append({**sizes, first: 1, second: 1})
    unique = {tuple(smaller.items()): smaller for smaller in tries if smaller != dict(sizes)}
    return sorted(unique.values(), key=lambda smaller: sum(smaller.values()))


def shrunk_plan(exercise: Exercise, trial: Trial, seed: int, sizes: Mapping[str, int]) -> Plan:
    """A plan that makes the trial at smaller and smaller sizes, and nothing else."""
    plan = Plan(exercise, seed, empty=True)
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

    def change(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            leaf = leaf.clone()
            if leaf.is_floating_point():
                return leaf.to(getattr(torch, dtype)).double()
        return leaf

    changed = {name: mapped(getattr(case, name), change) for name in ("args", "kwargs", "weights")}
    return replace(case, **changed)
