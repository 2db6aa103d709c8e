"""Turns the outcomes of an answer's runs into checks that passed or failed, with a sentence each."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from regard.attention.shapes import named
from regard.checking.child.messages import Failure, Outcome, Tree, Unfit
from regard.checking.child.trees import leaves
from regard.checking.compare import GRADIENT_TOLERANCE, Difference, difference, moved, same, tolerance_of
from regard.checking.plan import VARIANTS, Expected, Plan, Run
from regard.checking.trials import Kind, Probe, Trial

Outcomes = Mapping[int, Outcome]  # by the run's id
DEVICE_WORDS = ("not on the expected device", "on the same device", "at least two devices", "device meta")
# float16 ends at 65504: a larger constant cannot be converted, which a mask of -1e9 meets.
NO_ROOM_IN_HALF = "without overflow"
NOT_FOR_HALF = "not implemented for"
# What torch says to code that turns tensors into arrays.
IN_NUMPY = ("numpy() on Tensor that requires grad", "unsupported ScalarType BFloat16", "tensor to numpy")
NUMPY_NOTE = "it computes in NumPy, which has no bfloat16 and stays on the CPU."
NOT_TRIED = "not tried, because the ordinary calls fail."
UNFIT = "not tried, because the parameters do not fit."
NO_CHANGE = "your result did not change"
HIDDEN = "a hidden check failed."
CHANGES = (
    "your result changes from call to call: the same inputs gave other numbers. Something in it is random: a "
    "layer made in forward, dropout outside of training, torch.rand."
)


@dataclass(frozen=True, eq=False)
class Check:
    """One line of a report."""

    name: str
    passed: bool
    message: str = ""
    kind: Kind = "wrong"
    hidden: bool = False
    difference: Difference | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    whole: bool = False  # the message says all: no sentence of the trial's belongs beside it

    def __post_init__(self) -> None:
        """An answer may have written the message, control characters and half pairs of Unicode included."""
        object.__setattr__(self, "message", visible(self.message))

    @property
    def told(self) -> str:
        """What a student may read."""
        return HIDDEN if self.hidden and not self.passed else self.message

    @property
    def tried(self) -> bool:
        """Whether the answer could show what this check is about."""
        return self.message not in (NOT_TRIED, UNFIT)


def visible(text: str) -> str:
    """The text with everything that a terminal would obey, or no file could hold, written out.

    >>> print(visible("a\x1b[2Jb.."))
    a\\x1b[2Jb.
    """
    text = re.sub(r"([.?!])\.(?=\s|$)", r"\1", text) if not text.endswith("...") else text
    if text.isprintable():
        return text
    shown = (c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)
    return "".join(shown)


@dataclass(frozen=True, eq=False)
class Verdict:
    """All checks of an answer under one choice of conventions."""

    checks: tuple[Check, ...]
    notes: tuple[str, ...] = ()

    @property
    def failed(self) -> frozenset[str]:
        """The names of the checks that failed."""
        return frozenset(check.name for check in self.checks if not check.passed)


def judged(plan: Plan, outcomes: Outcomes, choices: Mapping[str, str]) -> Verdict:
    """Every check of the plan, for one answer's outcomes."""
    exercise = plan.exercise
    expected = plan.expected(choices)
    notes: list[str] = []
    checks: list[Check] = []
    values = [run for run in plan.runs if run.kind == "value"]
    if exercise.is_class:
        checks.append(_parameters(plan, values, outcomes, notes))
        outcomes = with_weights(plan, outcomes)
    right: set[str] = set()  # trials whose ordinary call gives the right numbers
    for run in values:
        check = _value(plan, run, outcomes[run.id], expected[run.id], notes)
        if check is not None:
            checks.append(check)
            right |= {check.name} if check.passed else set()
    for probe in plan.checks.probes:
        runs = [run for run in plan.runs if run.item is probe]
        check = _probe(plan, probe, runs, outcomes, expected, notes)
        if check is not None:
            checks.append(check)
    grouped = {kind: [run for run in plan.runs if run.kind == kind] for kind in ("gradients", *VARIANTS)}
    for kind, runs in grouped.items():
        if runs:
            checks.append(_all(kind, plan, runs, right, outcomes, expected, notes))
    checks.append(_unchanged(plan, values, outcomes))
    guessed = [guess for run in values if (unfit := outcomes[run.id].unfit) for guess in unfit.guessed]
    if guessed and any(not check.passed and check.kind == "wrong" for check in checks):
        return Verdict(_asked(checks, list(dict.fromkeys(guessed))))
    notes += [f"layers were taken in their order: {', '.join(dict.fromkeys(guessed))}."] if guessed else []
    return Verdict(tuple(_explained(checks, plan)), tuple(dict.fromkeys(notes)))


def with_weights(plan: Plan, outcomes: Outcomes) -> dict[int, Outcome]:
    """The outcomes, without those that came of weights at random because ours found no place."""
    run_cases = {run.id: plan.cases[run.case] for run in plan.runs}

    def at_random(id: int, unfit: Unfit | None) -> bool:
        weights = run_cases[id].weights if id in run_cases else {}
        return unfit is not None and bool(unfit.yours or (weights and len(unfit.ours) == len(weights)))

    return {
        id: replace(outcome, error=Failure("unfit"))
        if outcome.error is None and at_random(id, outcome.unfit)
        else outcome
        for id, outcome in outcomes.items()
    }


def _asked(checks: list[Check], guessed: list[str]) -> tuple[Check, ...]:
    """Layers taken in their order gave wrong numbers, which may be our fault: a question, and no more."""
    text = (
        f"which layer is which? The names do not tell, and in their order ({', '.join(guessed)}) the results "
        "are wrong. Name your layers as the task does."
    )
    rest = (replace(check, passed=False, message=UNFIT, difference=None) for check in checks[1:])
    return Check("parameters", False, text), *rest


def _explained(checks: list[Check], plan: Plan) -> list[Check]:
    """Failures with the sentence of their trial; one on fragility only where numbers are right."""
    says = {item.name: item.says for item in plan.checks.items if item.says}
    wrong = any(not check.passed and check.kind == "wrong" for check in checks)

    def explained(check: Check) -> Check:
        sentence = says.get(check.name, "")
        if check.passed or check.whole or not sentence or (wrong and check.kind != "wrong"):
            return check
        return replace(check, message=f"{check.message} {sentence[0].upper()}{sentence[1:]}".strip())

    return [explained(check) for check in checks]


def error_message(error: Failure) -> str:
    """What went wrong in a run, in a sentence."""
    where = f" ({error.where}: {error.line})" if error.where else ""
    if error.kind == "time":
        at = f", at {error.where}" if error.where else ""
        return f"it takes too long: an endless loop?{at}"
    if error.kind == "died":
        return f"it had to be stopped: {error.message}."
    if error.kind == "unfit":
        return UNFIT
    if error.kind == "not run":
        return "not run, because calls before it took too long or ended the process."
    if error.kind == "missing":
        return f"there is no method or function called {error.message}."
    if error.kind == "unsent":
        return f"its result cannot be compared: {error.message}"
    if error.type == "NotImplementedError":
        return f"not written yet{where}."
    text = f"{error.type}: {error.message}" if error.message else error.type
    what = {"construct": "making it raises", "gradient": "its gradient raises"}.get(error.kind, "it raises")
    return f"{what} {text}{where}"


def _parameters(plan: Plan, runs: list[Run], outcomes: Outcomes, notes: list[str]) -> Check:
    """Whether the weights found their places.

    Biases that nobody asked for are no fault unless there is an option for them.
    """
    exercise = plan.exercise
    for run in runs:
        unfit, weights = outcomes[run.id].unfit, plan.cases[run.case].weights
        if not unfit or (isinstance(run.item, Trial) and run.item.raises):
            continue
        ours = unfit.ours
        yours = [*unfit.yours, *(unfit.zeroed if exercise.has_bias_option else [])]
        if unfit.zeroed and not exercise.has_bias_option:
            notes.append(f"biases that are not asked for were set to zero: {', '.join(unfit.zeroed)}.")
        if ours or yours:
            text = "the parameters do not fit. Expected, without a place: {}. Yours, left over: {}."
            text = text.format(", ".join(ours) or "nothing", ", ".join(yours) or "nothing")
            if not yours and len(ours) == len(weights):
                text += " Layers are made in __init__: those made in forward are new and random in each call."
            return Check("parameters", False, text)
    return Check("parameters", True)


def _value(plan: Plan, run: Run, outcome: Outcome, expected: Expected, notes: list[str]) -> Check | None:
    """The check of a trial's result; None when it does not apply."""
    trial = run.item
    assert isinstance(trial, Trial)
    check = Check(trial.name, True, kind=trial.kind, hidden=trial.hidden, sizes=trial.sizes)
    error = outcome.error
    if trial.raises:
        wanted = " or ".join(trial.raises)
        if error is None:
            return replace(check, passed=False, message=f"it must raise {wanted}, and returns a result.")
        if error.type in trial.raises:
            return check
        return replace(check, passed=False, message=f"it must raise {wanted}: {error_message(error)}")
    if error is not None:
        return _without_result(check, trial, error, notes)
    wrong = compared(plan, run, expected.value, outcome.value)
    if wrong is not None:
        return replace(check, passed=False, message=wrong.message, difference=wrong)
    if trial.most_numbers is not None:
        most = trial.most_numbers(trial.sizes)
        if outcome.largest > most:
            text = f"a tensor of {outcome.largest} numbers is made on the way; {most} are enough."
            return replace(check, passed=False, message=text, kind="wasteful")
    return check


def _without_result(check: Check, item: Trial | Probe, error: Failure, notes: list[str]) -> Check | None:
    """The check of a call that has no result; None for a method that an answer may do without."""
    if item.optional and error.kind == "missing":
        notes.append(f"there is no {error.message}: its checks were left out.")
        return None
    return replace(check, passed=False, message=error_message(error), whole=True)


def compared(plan: Plan, run: Run, expected: Tree, got: Tree) -> Difference | None:
    """How a result differs from the expected one, as the exercise views both."""
    exercise = plan.exercise
    case = plan.cases[run.case]
    view = plan.checks.view
    if view is not None:
        expected = view(case, expected)
        try:
            got = view(case, got)
        except (RuntimeError, TypeError, AttributeError, IndexError, ValueError) as error:
            return Difference(f"the result has not the form that was asked for ({error}).")
    floating = any(
        isinstance(leaf, Tensor) and leaf.is_floating_point()
        for _, leaf in leaves([case.args, case.kwargs, case.weights])
    )
    dtype = run.dtype if floating and view is None else None
    return difference(expected, got, tolerance_of(run.dtype, exercise.tolerance), exercise.words, dtype)


def _probe(
    plan: Plan,
    probe: Probe,
    runs: list[Run],
    outcomes: Outcomes,
    expected: Mapping[int, Expected],
    notes: list[str],
) -> Check | None:
    check = Check(probe.name, True, kind=probe.kind, hidden=probe.hidden, sizes=probe.sizes)
    for run in runs:
        error = outcomes[run.id].error
        if error is not None:
            return _without_result(check, probe, error, notes)
    results = [outcomes[run.id].value for run in runs]
    if probe.judge is not None:
        try:
            text = probe.judge(results)
        except Exception as error:  # the judge is the author's, the results anybody's
            text = f"the result has not the form that was asked for ({error})."
    else:
        text = _leak(plan, [expected[run.id].value for run in runs], results)
    if text is None:
        return check
    return replace(check, passed=False, message=text, whole=text.startswith(NO_CHANGE))


def _leak(plan: Plan, expected: list[Tree], results: list[Tree]) -> str | None:
    """Where the answer moves and the reference does not, or the other way round."""
    tolerance = tolerance_of("float32", plan.exercise.tolerance)
    for want, have in zip(expected[1:], results[1:], strict=True):
        pairs = zip(leaves(expected[0]), leaves(want), leaves(results[0]), leaves(have), strict=False)
        for (path, base), (_, changed), (_, mine), (_, my_changed) in pairs:
            tensors = (base, changed, mine, my_changed)
            if not all(isinstance(leaf, Tensor) for leaf in tensors):
                continue
            if len({leaf.shape for leaf in tensors}) > 1:
                return f"the shape must be {tuple(base.shape)}, and yours is {tuple(mine.shape)}."
            may = moved(base, changed, 1e-9)
            does = moved(mine, my_changed, tolerance)
            words = plan.exercise.words.get(path, ())
            if bool((does & ~may).any()):
                at = (does & ~may).nonzero()[0].tolist()
                return f"your result changed at {named(words, at)}, where it must not."
            # Only a change large enough to be seen in float32 has to show.
            must = moved(base, changed, 50 * tolerance)
            if bool((must & ~does).any()):
                at = (must & ~does).nonzero()[0].tolist()
                return f"{NO_CHANGE} at {named(words, at)}: what was changed must show there."
    return None


def _all(
    kind: str,
    plan: Plan,
    runs: list[Run],
    right: set[str],
    outcomes: Outcomes,
    expected: Mapping[int, Expected],
    notes: list[str],
) -> Check:
    """One check over the runs of a kind, gradients or a variant, of the trials whose numbers are right."""
    family: Kind = "wrong" if kind == "gradients" else "fragile"
    unsure = (run for run in runs if kind == "called twice" and run.item.name not in right)
    if any(_changes(plan, run, outcomes[run.id]) for run in unsure):
        return Check(kind, False, CHANGES, "wrong")
    tried = [run for run in runs if run.item.name in right]
    if not tried and any(isinstance(run.item, Trial) and not run.item.optional for run in runs):
        unfit = any((error := outcomes[run.id].error) and error.kind == "unfit" for run in runs)
        return Check(kind, False, UNFIT if unfit else NOT_TRIED, family)
    for run in tried:
        outcome = outcomes[run.id]
        if kind == "gradients":
            text = _gradients(plan, run, outcome, expected[run.id])
        elif kind == "device":
            text = _device(outcome, notes)
        else:
            text = _variant(kind, plan, run, outcome, expected[run.id], notes)
        if text:
            return Check(kind, False, f"{run.item.name}: {text}", family, sizes=run.item.sizes)
    return Check(kind, True, kind=family)


def _changes(plan: Plan, run: Run, outcome: Outcome) -> bool:
    """Whether the same call gave two results, one after the other."""
    if outcome.error is not None or plan.cases[run.case].train:
        return False
    return not same(outcome.value, outcome.again, tolerance_of("float32", plan.exercise.tolerance))


def _gradients(plan: Plan, run: Run, outcome: Outcome, expected: Expected) -> str:
    error = outcome.error
    if error is not None:
        if _in_numpy(error):
            where = f" ({error.where}: {error.line})" if error.where else ""
            return (
                f"it computes in NumPy{where}, and no gradient passes through that: use torch's operations."
            )
        return error_message(error)
    tolerance = tolerance_of("float32", plan.exercise.tolerance) * GRADIENT_TOLERANCE
    grads = outcome.grads
    wanted = expected.grads or {}
    unreached = [
        _input_name(plan, run, name)
        for name, want in wanted.items()
        if grads.get(name) is None and bool(moved(want, torch.zeros_like(want), tolerance).any())
    ]
    if unreached:
        return f"no gradient reaches {', '.join(unreached)}: detach, .data, .item, NumPy or no_grad cut it."
    for name, want in wanted.items():
        have = grads.get(name)
        if have is None:
            continue
        wrong = difference(want, have.double(), tolerance)
        if wrong is not None:
            return f"the gradient of {_input_name(plan, run, name)} is wrong: {wrong.message}"
    return ""


def _input_name(plan: Plan, run: Run, name: str) -> str:
    """What the student calls the tensor that the harness calls "input 3"; a parameter's name as it is."""
    number = name.removeprefix("input ")
    return name if number == name else argument_names(plan, run)[int(number)]


def argument_names(plan: Plan, run: Run) -> list[str]:
    """The names of the tensors among the arguments, from the starter's signature where there is one call."""
    exercise, case = plan.exercise, plan.cases[run.case]
    paths = [path for path, leaf in leaves([case.args, case.kwargs]) if isinstance(leaf, Tensor)]
    defined = exercise.definitions
    node: ast.AST | None = defined.get(case.call, defined[exercise.names[0]])
    if isinstance(node, ast.ClassDef):
        name = case.call or "forward"
        node = next((part for part in node.body if getattr(part, "name", "") == name), None)
    names: list[str] = []
    if isinstance(node, ast.FunctionDef) and not exercise.drive_file:
        names = [argument.arg for argument in node.args.args if argument.arg != "self"]

    def called(index: int, path: str) -> str:
        kind, first, *_ = path.split(".")
        plain = kind == "0" and int(first) < len(names)
        return (
            first if kind == "1" else names[int(first)] if plain else f"tensor {index + 1} of the arguments"
        )

    return [called(index, path) for index, path in enumerate(paths)]


def _in_numpy(error: Failure) -> bool:
    return any(words in error.message for words in IN_NUMPY)


def _device(outcome: Outcome, notes: list[str]) -> str:
    """A missing `device=` shows on the meta device, which has shapes but no numbers."""
    error = outcome.error
    if error is not None:
        if any(word in error.message for word in DEVICE_WORDS):
            where = f" ({error.where}: {error.line})" if error.where else ""
            return f"a new tensor is made on the CPU, whatever the device of the inputs: pass device={where}."
        if _in_numpy(error):
            notes.append(NUMPY_NOTE)
        return ""  # code that looks at numbers may fail on zeros, which is no fault
    stray = [leaf for _, leaf in leaves(outcome.value) if isinstance(leaf, Tensor) and leaf.dim() > 0]
    return "the result is on the CPU, whatever the device of the inputs." if stray else ""


def _variant(kind: str, plan: Plan, run: Run, outcome: Outcome, expected: Expected, notes: list[str]) -> str:
    error = outcome.error
    if error is not None:
        if run.dtype == "float16" and NO_ROOM_IN_HALF in error.message:
            notes.append(
                "a constant of yours does not fit float16, so half precision fails: hide with -inf, not "
                "with a large negative number."
            )
            return ""
        if run.dtype == "bfloat16" and _in_numpy(error):
            notes.append(NUMPY_NOTE)
            return ""
        half = run.dtype in ("float16", "bfloat16")
        if half and (NOT_FOR_HALF in error.message or error.type == "AssertionError"):
            return ""  # an answer that checks itself does so with more digits than these have
        return error_message(error)
    wrong = compared(plan, run, expected.value, outcome.value)
    if kind == "called twice":
        if wrong is not None:
            return f"wrong after a call with other inputs, of which something is kept: {wrong.message}"
        wrong = compared(plan, run, expected.value, outcome.again)
        if wrong is not None:
            return f"right the first time, wrong the second: {wrong.message}"
    return wrong.message if wrong is not None else ""


def _unchanged(plan: Plan, runs: list[Run], outcomes: Outcomes) -> Check:
    for run in runs:
        changed = outcomes[run.id].changed
        if changed:
            names = argument_names(plan, run)
            which = ", ".join(names[index] for index in changed if index < len(names))
            text = f"{run.item.name}: {which} is not what it was before the call."
            return Check("inputs unchanged", False, text, "fragile")
    return Check("inputs unchanged", True, kind="fragile")
