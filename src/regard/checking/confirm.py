"""Confirms that a wrong number is wrong: what fails in float32 is repeated in float64 before it counts.

Two right answers that compute in another order differ by rounding, and where scores are nearly tied or a norm
is taken of almost equal numbers, by much of it. So results that are a little off are made again in float64,
by the answer and by the reference. Where they agree there, rounding was all that was wrong, and the float64
result takes the place of the other. What is not finite where a number is expected, or off by more than
MOST_ROUNDING tolerances, counts as it is: no sum in another order does that.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from regard.checking.child.messages import Answer, Order, Outcome, Tree
from regard.checking.compare import GRADIENT_TOLERANCE, TOLERANCE, off
from regard.checking.forms import changed_numbers
from regard.checking.judge import Outcomes, probe_fault
from regard.checking.plan import Plan, Run
from regard.checking.runner import Runner
from regard.checking.trials import Probe

MOST_ROUNDING = 100  # tolerances by which rounding may explain a difference
# An answer that cannot run in float64 may be off by this much more than rounding the inputs makes a result.
CONDITION_FACTOR = 10
Choices = Mapping[str, str]


def confirmed(
    runner: Runner, answer: Answer, plan: Plan, outcomes: Outcomes
) -> tuple[dict[int, Outcome], list[str]]:
    """Repeat in float64 what is wrong by no more than rounding can explain.

    Args:
        runner: Where the answer runs.
        answer: The answer, as it was run before.
        plan: The calls, and what they must return.
        outcomes: What the answer gave in float32, by the id of the run.

    Returns:
        The outcomes, those that are right in float64 in the place of those that rounding made wrong; and what
        a report says of calls that could not be repeated.
    """
    doubted: dict[int, tuple[Run, list[Choices]]] = {}
    for choices in plan.told_apart:
        for run in _doubtful(plan, outcomes, choices):
            doubted.setdefault(run.id, (run, []))[1].append(choices)
    if not doubted:
        return dict(outcomes), []
    orders = [
        Order(run.id, run.case, "value" if run.kind == "probe" else run.kind, dtype="float64")
        for run, _ in doubted.values()
    ]
    repeated = runner.run(answer, orders).runs
    settled = dict(outcomes)
    notes: list[str] = []
    probes: dict[str, list[Run]] = {}
    for run, ways in doubted.values():
        if isinstance(run.item, Probe):
            probes.setdefault(run.item.name, []).append(run)
        elif run.id in repeated:
            right, note = _right(plan, run, outcomes[run.id], repeated[run.id], ways)
            notes += [note] if note else []
            settled[run.id] = right or settled[run.id]
    for runs in probes.values():
        if all(run.id in repeated and repeated[run.id].error is None for run in runs):
            changed = {run.id: _as_float32(repeated[run.id]) for run in runs}
            near = all(
                off(repeated[run.id].value, outcomes[run.id].value) <= MOST_ROUNDING * plan.tolerance
                for run in runs
            )
            faults = [_fault(plan, runs, repeated, choices) for choices in doubted[runs[0].id][1]]
            if near and None in faults:
                settled |= changed
    return settled, list(dict.fromkeys(notes))


def _doubtful(plan: Plan, outcomes: Outcomes, choices: Choices) -> Iterator[Run]:
    """Yield the runs in float32 that are wrong, and by so little that it may be rounding."""
    expected = plan.expected(choices)
    for run in plan.runs:
        outcome = outcomes.get(run.id)
        if outcome is None or outcome.error is not None or run.dtype != "float32" or run.kind == "device":
            continue
        if not isinstance(run.item, Probe):
            apart = _apart(plan, run, expected[run.id], outcome)
            if plan.tolerance < apart <= MOST_ROUNDING * plan.tolerance:
                yield run
    for probe in plan.checks.probes:
        runs = [run for run in plan.runs if run.item is probe]
        made = all(run.id in outcomes and outcomes[run.id].error is None for run in runs)
        if made and _fault(plan, runs, outcomes, choices, plan.tolerance) is not None:
            yield from runs


def _fault(
    plan: Plan, runs: Sequence[Run], outcomes: Outcomes, choices: Choices, tolerance: float = 0.0
) -> str | None:
    """Say what is wrong with the results of a probe, at the tolerance of float64 where none is given."""
    tolerance = tolerance or TOLERANCE["float64"]
    expected = plan.expected(choices)
    probe = runs[0].item
    assert isinstance(probe, Probe)
    values = [expected[run.id].value for run in runs]
    return probe_fault(plan, probe, values, [outcomes[run.id].value for run in runs], tolerance)


def _apart(plan: Plan, run: Run, expected: Outcome, outcome: Outcome) -> float:
    """Return how far an outcome is from the expected one, as part of its size; infinite for another form."""
    try:
        wanted = plan.view(run, expected.value)
        apart = [off(wanted, plan.view(run, outcome.value))]
        if run.kind == "called twice":
            apart.append(off(wanted, plan.view(run, outcome.again)))
    except (RuntimeError, TypeError, AttributeError, IndexError, ValueError):
        return math.inf
    if run.kind == "gradients":
        for name, want in expected.grads.items():
            have = outcome.grads.get(name)
            if want is not None and have is not None:
                apart.append(off(want, have) / GRADIENT_TOLERANCE)
    return max(apart)


def _right(
    plan: Plan, run: Run, outcome: Outcome, repeated: Outcome, ways: Sequence[Choices]
) -> tuple[Outcome | None, str]:
    """Return what takes the place of a doubtful outcome, or None where it is wrong, and a note."""
    exact = TOLERANCE["float64"]
    for choices in ways:
        expected = plan.expected(choices)[run.id]
        if repeated.error is None:
            if _apart(plan, run, expected, repeated) <= exact:
                return _as_float32(repeated), ""
            continue
        # Nothing to repeat: how far any right answer may be off, the reference tells.
        allowed = CONDITION_FACTOR * plan.condition(run, choices, inputs_too=True)
        if _apart(plan, run, expected, outcome) <= allowed:
            note = (
                f"{run.item.name}: it does not run in float64, so wrong cannot be told from rounding: "
                f"differences up to {allowed:.1g} of the largest number were accepted, which is "
                f"{CONDITION_FACTOR} times what rounding the inputs changes."
            )
            return Outcome(**_fields(expected)), note
    return None, ""


def _fields(expected: Outcome) -> dict[str, Tree]:
    outcome = _as_float32(expected)
    return {"run": outcome.run, "value": outcome.value, "again": outcome.value, "grads": outcome.grads}


def _as_float32(outcome: Outcome) -> Outcome:
    """Return the outcome with its float64 numbers rounded, as if it had been made in float32."""
    rounded = partial(changed_numbers, change=_rounded)
    return replace(
        outcome, value=rounded(outcome.value), again=rounded(outcome.again), grads=rounded(outcome.grads)
    )


def _rounded(leaf: Tensor) -> Tensor:
    return leaf.float() if leaf.dtype == torch.float64 else leaf
