"""Which calls check an exercise, and what they must return."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard.checking.child.messages import Answer, Job, Order
from regard.checking.child.trees import leaves, mapped, weighted_sum
from regard.checking.compare import same
from regard.checking.spec import Exercise
from regard.checking.trials import Case, Draw, Impossible, Probe, Trial
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
    item: Trial | Probe
    case: int
    order: Order  # what the child is told

    @property
    def dtype(self) -> str:
        """The floating dtype of its inputs."""
        return self.order.dtype or "float32"


@dataclass(frozen=True, eq=False)
class Expected:
    """What a run must give."""

    value: Any
    grads: Mapping[str, Tensor] | None = None


class Plan:
    """All runs of one exercise for one seed, and their expected results under each choice of conventions.

    An `empty` plan has no runs yet: they are added with `add_trial`.
    """

    def __init__(self, exercise: Exercise, seed: int, *, empty: bool = False) -> None:
        self.exercise, self.seed = exercise, seed
        self.cases: list[Case] = []
        self.runs: list[Run] = []
        self._expected: dict[tuple[str, ...], dict[int, Expected]] = {}
        self._told_apart: list[dict[str, str]] = []
        self.checks = exercise.checks
        for trial in () if empty else self.checks.trials:
            self.add_trial(trial)
        for probe in () if empty else self.checks.probes:
            cases = probe.make(Draw(probe.sizes, self.seed_of(probe)))
            for case in cases:
                self._add("probe", probe, case)

    def seed_of(self, item: Trial | Probe) -> int:
        """Each trial has its own numbers, the same for every answer checked with this seed."""
        return self.seed * 1_000_003 + zlib.crc32(item.name.encode())

    def add_trial(self, trial: Trial, *, brief: bool = False) -> None:
        """Add the runs of one trial; `brief` for its value alone."""
        case = trial.make(Draw(trial.sizes, self.seed_of(trial)))
        self._add("value", trial, case, largest=trial.most_numbers is not None)
        if brief or trial.raises:
            return
        index = len(self.cases) - 1
        if trial.grad:
            self._add("gradients", trial, index, gradients=True)
        if trial.variants:
            for name, options in VARIANTS.items():
                self._add(name, trial, index, **options)

    def _add(self, kind: str, item: Trial | Probe, case: Case | int, **options: Any) -> None:
        if isinstance(case, Case):
            self.cases.append(case)
            case = len(self.cases) - 1
        id = len(self.runs)
        self.runs.append(Run(id, kind, item, case, Order(id, case, seed=1 + id, **options)))

    def choices(self) -> list[dict[str, str]]:
        """Every combination of conventions, ours first."""
        conventions = self.exercise.conventions
        return [
            dict(zip([convention.name for convention in conventions], combination, strict=True))
            for combination in itertools.product(*(convention.choices for convention in conventions))
        ]

    def told_apart(self) -> list[dict[str, str]]:
        """The combinations whose results differ in some call from those of every one before."""
        if not self._told_apart:
            results: list[list[Any]] = []
            apart: list[dict[str, str]] = []
            for choices in self.choices():
                with torch.no_grad():
                    given = [
                        None
                        if isinstance(run.item, Trial) and run.item.raises
                        else self.checks.reference(self.cases[run.case], **choices)
                        for run in self.runs
                        if run.kind in ("value", "probe")
                    ]
                if not any(same(given, other, 1e-9) for other in results):
                    results.append(given)
                    apart.append(choices)
            self._told_apart = apart  # whole at once: answers are checked side by side
        return self._told_apart

    def expected(self, choices: Mapping[str, str]) -> dict[int, Expected]:
        """What each run must give, by its id."""
        key = tuple(choices.values())
        if key not in self._expected:
            self._expected[key] = {run.id: self._answer(run, choices) for run in self.runs}
        return self._expected[key]

    def _answer(self, run: Run, choices: Mapping[str, str]) -> Expected:
        item = run.item
        if isinstance(item, Trial) and item.raises:
            return Expected(None)
        case = as_float64(self.cases[run.case], run.dtype)
        try:
            if run.kind == "gradients":
                return self._gradients(case, choices)
            with torch.no_grad():
                return Expected(self.checks.reference(case, **choices))
        except (RegardError, RuntimeError, ValueError, TypeError, IndexError, KeyError) as error:
            raise ArgumentError(
                f"{self.exercise.id}: the reference fails on {item.name!r}: {type(error).__name__}: {error}"
            ) from error

    def _gradients(self, case: Case, choices: Mapping[str, str]) -> Expected:
        floats = {
            f"input {index}": tensor
            for index, tensor in enumerate(tensors_of(case))
            if tensor.is_floating_point()
        } | case.weights
        for tensor in floats.values():
            tensor.requires_grad_(True)
        value = self.checks.reference(case, **choices)
        total = weighted_sum(value)
        if total is None:
            return Expected(_detached(value), {})
        grads = torch.autograd.grad(total, list(floats.values()), allow_unused=True)
        by_name = {
            name: torch.zeros_like(tensor) if grad is None else grad
            for (name, tensor), grad in zip(floats.items(), grads, strict=True)
        }
        return Expected(_detached(value), by_name)

    def job(self, answers: list[Answer], runs: list[Run] | None = None) -> Job:
        """The message that makes a child do these runs for these answers."""
        return Job(answers, self.cases, [run.order for run in (self.runs if runs is None else runs)])


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

    return replace(
        case,
        args=mapped(case.args, change),
        kwargs=mapped(case.kwargs, change),
        weights=mapped(case.weights, change),
    )


def _detached(tree: Any) -> Any:
    return mapped(tree, lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf)
