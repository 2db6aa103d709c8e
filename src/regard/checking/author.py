"""Proves an exercise before students see it."""

import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from operator import methodcaller

import torch

from regard.checking.child.messages import Failure, Outcome, mapped
from regard.checking.confirm import confirmed
from regard.checking.forms import Whatever, changed_numbers
from regard.checking.judge import Check, compared, judged
from regard.checking.naming import RAISED, Space, best_verdict, diagnosis, numbers, plain_answer
from regard.checking.plan import Plan
from regard.checking.runner import Runner
from regard.checking.spec import Exercise, Mistake


@dataclass(frozen=True)
class ProofLine:
    """One statement about an exercise, and whether it holds."""

    what: str
    holds: bool
    detail: str = ""
    group: str = ""


@dataclass(frozen=True)
class Proof:
    """Everything that was tried on an exercise."""

    exercise: str
    lines: tuple[ProofLine, ...]

    @property
    def holds(self) -> bool:
        """Whether students may see it."""
        return all(line.holds for line in self.lines)


def prove(exercise: Exercise, runner: Runner, seed: int = 0) -> Proof:
    """Right variants pass, the starter fails, every mistake is caught and named, data is varied."""
    return Proof(exercise.id, tuple(_lines(exercise, runner, seed)))


def _lines(exercise: Exercise, runner: Runner, seed: int) -> Iterator[ProofLine]:
    plan = Plan(exercise, seed)
    yield _reference(plan)
    yield from _data(plan)
    n_right, n_mistake = len(exercise.right), len(exercise.mistakes)
    for what, count, fewest in (("right variants", n_right, 2), ("mistakes", n_mistake, 8)):
        yield ProofLine(f"there are {count} {what}", count >= fewest, f"at least {fewest} are needed")
    files = {path.stem for path in (exercise.folder / "right").glob("*.py")}
    unnamed = ", ".join(sorted(files - set(exercise.variants)))
    yield ProofLine("exercise.toml names every file of right/", not unnamed, f"it does not name {unnamed}")
    for name, source in zip(exercise.variants.values(), exercise.right, strict=True):
        others = (Plan(exercise, seed, offer=offer) for offer in exercise.offers[1:])
        failed = _failures(plan, runner, source)
        if failed and any(not _failures(other, runner, source) for other in others):
            failed = ""
        yield ProofLine(f"the right variant {name!r} passes", not failed, failed)
    yield ProofLine("the starter fails", bool(_failures(plan, runner, exercise.starter)))
    yield from _mistakes(plan)


def _mistakes(plan: Plan) -> Iterator[ProofLine]:
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
                yield ProofLine(what, not missing, f"there is no {missing}", "named, by pattern")
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
            yield ProofLine(f"the mistake {mistake.name!r} is caught", shown, "no call shows it", "caught")
        if not shown:
            continue
        known = diagnosis(space, outcomes, choices, verdict).named
        names = [guess.name for named in known for guess in named.mistakes]
        twin = mistake.name not in ours and any(named.certain and not named.where for named in known)
        detail = f"named {', '.join(names)!r}" if names else "no name"
        holds = names == [mistake.name] or twin
        yield ProofLine(f"the mistake {mistake.name!r} is named", holds, detail, "named, by value")


def outcomes_of(space: Space, *mistakes: Mistake) -> dict[int, Outcome]:
    """What an answer with these mistakes gives, in the calls that tell by their numbers."""
    outcomes = {run.id: Outcome(error=Failure("missing")) for run in space.plan.runs}
    for run in space.runs:
        value = space.raw(run, space.plan.choices()[0], mistakes)
        if value is RAISED:
            outcomes[run.id] = Outcome(error=Failure("error", "RuntimeError"))
        else:
            shown = mapped(value, lambda leaf: torch.zeros(1) if isinstance(leaf, Whatever) else leaf)
            outcomes[run.id] = Outcome(value=shown)
    return outcomes


def _failures(plan: Plan, runner: Runner, source: str) -> str:
    """What an answer fails, in a line; nothing when it passes."""
    answer = plain_answer(plan.exercise, source)
    ran = runner.run(answer, plan.orders)
    if ran.loaded is None or ran.loaded.problem:
        return f"it does not load: {ran.loaded}"
    verdict = best_verdict(plan, ran.runs)[1]
    if verdict.failed:
        outcomes, _ = confirmed(runner, answer, plan, ran.runs)
        verdict = best_verdict(plan, outcomes)[1]
    return _failed(verdict.checks)


def _failed(checks: Iterable[Check]) -> str:
    return "; ".join(f"{check.name}: {check.message}" for check in checks if not check.passed)


def _reference(plan: Plan) -> ProofLine:
    """The reference, judged as if it were an answer: by probes, and by its own values."""
    outcomes = dict(plan.expected(plan.choices()[0]))
    for run in plan.runs:
        value = changed_numbers(outcomes[run.id].value, methodcaller("to", getattr(torch, run.dtype)))
        outcomes[run.id] = replace(outcomes[run.id], value=value, again=value)
        if run.item.raises or run.kind == "device":
            outcomes[run.id] = Outcome(error=Failure("error", *run.item.raises[:1]))
    # Dropout is chance: what the answers are judged on there, a reference without it cannot show.
    chance = {run.item.name for run in plan.runs if run.case.train and run.kind == "probe"}
    checks = judged(plan, outcomes, plan.choices()[0]).checks
    failed = _failed(check for check in checks if check.name not in chance)
    return ProofLine("the reference passes its own checks", not failed, failed)


def _data(plan: Plan) -> Iterator[ProofLine]:
    """Inputs that make every softmax one-hot, or every output alike, would hide mistakes."""
    expected = plan.expected(plan.choices()[0])
    for run in plan.runs:
        if run.kind != "value" or run.item.raises or run.item.kind != "wrong":
            continue
        flat = numbers(expected[run.id].value)
        flat = flat[torch.isfinite(flat)]
        if flat.numel() < 2:
            continue
        constant = float(flat.std()) < 1e-6
        saturated = float(((flat.abs() - 1).abs() < 1e-4).double().mean()) > 0.5
        if constant or saturated:
            what = "the same everywhere" if constant else "saturated: most results are 1 or -1"
            yield ProofLine(f"the data of {run.item.name!r} is varied", False, f"it is {what}")
    yield ProofLine("no data is constant or saturated", True)
