"""Proves an exercise before students see it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.checking.child.messages import Failure, Outcome, leaves, mapped
from regard.checking.forms import Whatever
from regard.checking.judge import compared, judged
from regard.checking.naming import RAISED, Space, best_verdict, diagnosis, plain_answer
from regard.checking.plan import Plan
from regard.checking.runner import Ran, Runner
from regard.checking.spec import Exercise, Mistake

FEWEST_MISTAKES = 8
FEWEST_RIGHT = 2


@dataclass(frozen=True)
class Line:
    """One statement about an exercise, and whether it holds."""

    what: str
    holds: bool
    detail: str = ""
    group: str = ""


@dataclass(frozen=True)
class Proof:
    """Everything that was tried on an exercise."""

    exercise: str
    lines: tuple[Line, ...]

    @property
    def holds(self) -> bool:
        """Whether students may see it."""
        return all(line.holds for line in self.lines)

    def of(self, group: str) -> list[Line]:
        """The lines on one matter."""
        return [line for line in self.lines if line.group == group]


def prove(exercise: Exercise, runner: Runner, seed: int = 0) -> Proof:
    """Right variants pass, the starter fails, every mistake is caught and named, data is varied."""
    return Proof(exercise.id, tuple(_lines(exercise, runner, seed)))


def _lines(exercise: Exercise, runner: Runner, seed: int) -> Iterator[Line]:
    plan = Plan(exercise, seed)
    yield from _reference(plan)
    yield from _data(plan)
    for what, count, fewest in (
        ("right variants", len(exercise.right), FEWEST_RIGHT),
        ("mistakes", len(exercise.mistakes), FEWEST_MISTAKES),
    ):
        yield Line(f"there are {count} {what}", count >= fewest, f"at least {fewest} are needed")
    files = {path.stem for path in (exercise.folder / "right").glob("*.py")}
    unnamed = ", ".join(sorted(files - set(exercise.variants)))
    yield Line("exercise.toml names every file of right/", not unnamed, f"it does not name {unnamed}")
    sources = [*(right.source for right in exercise.right), exercise.starter]
    results = [runner.run(plain_answer(exercise, source), plan.orders) for source in sources]
    for right, result in zip(exercise.right, results, strict=False):
        failed = _failures(plan, result)
        yield Line(f"the right variant {right.name!r} passes", not failed, failed, "right")
    yield Line("the starter fails", bool(_failures(plan, results[-1])))
    yield from _mistakes(plan)


def _mistakes(plan: Plan) -> Iterator[Line]:
    """Each mistake is seen by some call and named by its numbers; checks that are to fail are there.

    Of mistakes that are shared, those that this exercise cannot show are left out of account.
    """
    exercise, space = plan.exercise, Space(plan)
    ours = tomllib.loads(exercise.read("exercise.toml")).get("mistake", {})
    checks = {item.name for item in plan.checks.items} | {run.kind for run in plan.runs}
    checks |= {"inputs unchanged", *(["parameters"] if exercise.is_class else [])}
    for mistake in exercise.mistakes:
        if mistake.fails:
            missing = ", ".join(sorted(set(mistake.fails) - checks))
            if not missing or mistake.name in ours:
                what = f"the checks that the mistake {mistake.name!r} fails are there"
                yield Line(what, not missing, f"there is no {missing}", "named, by pattern")
            continue
        outcomes = outcomes_of(space, mistake)
        choices, verdict = best_verdict(plan, outcomes)
        expected = plan.expected(choices)
        shown = any(
            outcomes[run.id].error is None
            and compared(plan, run, expected[run.id].value, outcomes[run.id].value)
            for run in space.runs
        )
        if shown or mistake.name in ours:
            yield Line(f"the mistake {mistake.name!r} is caught", shown, "no call shows it", "caught")
        if not shown:
            continue
        known = diagnosis(space, outcomes, choices, verdict).named
        names = [guess.name for guess in known[0].mistakes] if known else []
        twin = mistake.name not in ours and bool(known) and known[0].certain and not known[0].where
        yield Line(
            f"the mistake {mistake.name!r} is named",
            names == [mistake.name] or twin,
            f"named {', '.join(names)!r}" if names else "no name",
            "named, by value",
        )


def outcomes_of(space: Space, *mistakes: Mistake) -> dict[int, Outcome]:
    """What an answer with these mistakes gives, in the calls that tell by their numbers."""
    outcomes = {run.id: Outcome(error=Failure("missing")) for run in space.plan.runs}
    for run in space.runs:
        value = space.raw(run, space.plan.choices()[0], mistakes)
        if value is RAISED:
            outcomes[run.id] = Outcome(error=Failure("error", "RuntimeError"))
        else:
            outcomes[run.id] = Outcome(value=mapped(value, _anything_else))
    return outcomes


def _anything_else(leaf: Any) -> Any:
    return torch.zeros(1) if isinstance(leaf, Whatever) else leaf


def _failures(plan: Plan, ran: Ran) -> str:
    """What an answer fails, in a line; nothing when it passes."""
    if ran.loaded is None or ran.loaded.died or ran.loaded.missing:
        return f"it does not load: {ran.loaded}"
    _, verdict = best_verdict(plan, ran.runs)
    return "; ".join(f"{check.name}: {check.message}" for check in verdict.checks if not check.passed)


def _reference(plan: Plan) -> Iterator[Line]:
    """The reference, judged as if it were an answer: by probes, and by its own values."""
    expected = plan.expected(plan.choices()[0])
    outcomes: dict[int, Outcome] = {}
    for run in plan.runs:
        value = _rounded(expected[run.id].value, run.dtype)
        outcomes[run.id] = Outcome(value=value, again=value, grads=dict(expected[run.id].grads or {}))
        if run.item.raises:
            outcomes[run.id] = Outcome(error=Failure("error", run.item.raises[0]))
        if run.kind == "device":
            outcomes[run.id] = Outcome(error=Failure("error"))
    verdict = judged(plan, outcomes, plan.choices()[0])
    # Dropout is chance: what the answers are judged on there, a reference without it cannot show.
    chance = {run.item.name for run in plan.runs if run.case.train and run.kind == "probe"}
    failed = "; ".join(
        f"{check.name}: {check.message}"
        for check in verdict.checks
        if not check.passed and check.name not in chance
    )
    yield Line("the reference passes its own checks", not failed, failed, "right")


def _rounded(tree: Any, dtype: str) -> Any:
    def change(leaf: Any) -> Any:
        floating = isinstance(leaf, Tensor) and leaf.is_floating_point()
        return leaf.to(getattr(torch, dtype)) if floating else leaf

    return mapped(tree, change)


def _data(plan: Plan) -> Iterator[Line]:
    """Inputs that make every softmax one-hot, or every output alike, would hide mistakes."""
    expected = plan.expected(plan.choices()[0])
    for run in plan.runs:
        if run.kind != "value" or run.item.raises or run.item.kind != "wrong":
            continue
        numbers = [
            leaf.double().reshape(-1)
            for _, leaf in leaves(expected[run.id].value)
            if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.numel() > 1
        ]
        if not numbers:
            continue
        flat = torch.cat(numbers)
        flat = flat[torch.isfinite(flat)]
        if flat.numel() < 2:
            continue
        constant = float(flat.std()) < 1e-6
        saturated = float(((flat.abs() - 1).abs() < 1e-4).double().mean()) > 0.5
        if constant or saturated:
            what = "the same everywhere" if constant else "saturated: most results are 1 or -1"
            yield Line(f"the data of {run.item.name!r} is varied", False, f"it is {what}", "data")
    yield Line("no data is constant or saturated", True, group="data")
