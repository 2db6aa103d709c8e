"""Turns the outcomes of an answer's runs into checks that passed or failed, with a sentence each."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from regard.attention.shapes import named
from regard.checking.child.loader import NOT_LENT
from regard.checking.child.messages import Failure, Outcome, Tree, leaves
from regard.checking.compare import GRADIENT_TOLERANCE, TOLERANCE, Difference, difference, moved, same
from regard.checking.plan import VARIANTS, Plan, Run
from regard.checking.trials import Item, Kind, Probe, Trial, formula

Outcomes = Mapping[int, Outcome]  # by the run's id
# What torch says to code that turns tensors into arrays.
IN_NUMPY = ("numpy() on Tensor that requires grad", "unsupported ScalarType BFloat16", "tensor to numpy")
NUMPY_NOTE = "it computes in NumPy, which has no bfloat16 and stays on the CPU."
# float16 ends at 65504: a larger constant cannot be converted, which a mask of -1e9 meets.
HALF_NOTE = (
    "a constant of yours does not fit float16, so half precision fails: hide with -inf, not with a large "
    "negative number."
)
NO_GRADIENT = "it computes in NumPy{}, and no gradient passes through that: use torch's operations."
ON_CPU = "a new tensor is made on the CPU, whatever the device of the inputs: pass device={}."
# Torch says so where a tensor that is float32 by itself meets inputs of another dtype.
DTYPE_WORDS = ("expected scalar type", "same dtype")
DTYPE_NOTE = "a new tensor is float32, whatever the dtype of the inputs is: pass dtype=x.dtype."
DEVICE_WORDS = ("not on the expected device", "on the same device", "at least two devices", "device meta")
# Of errors where the ordinary call gives a result: kinds of runs, words, what is said, whether it is a fault.
# An answer that checks itself does so with more digits than half precision has, and one that looks at numbers
# may fail on the zeros of the meta device.
ERRORS = (
    (("gradients",), IN_NUMPY, NO_GRADIENT, True),
    (("device",), DEVICE_WORDS, ON_CPU, True),
    (("device", "bfloat16"), IN_NUMPY, NUMPY_NOTE, False),
    (("float16",), ("without overflow",), HALF_NOTE, False),
    (("float64", "float16", "bfloat16"), DTYPE_WORDS, DTYPE_NOTE, False),
    (("float16", "bfloat16"), ("not implemented for", "AssertionError"), "", False),
    (("device",), ("",), "", False),
)
NOT_TRIED = "not tried, because the ordinary calls fail."
UNFIT = "not tried, because the parameters do not fit."
NO_CHANGE = "your result did not change"
NO_FORM = "the result has not the form that was asked for ({})."
HIDDEN = "a hidden check failed."
WHICH = (
    "which layer is which? The names do not tell, and in their order ({}) the results are wrong. Name your "
    "layers as the task does."
)
IN_INIT = " Layers are made in __init__: those made in forward are new and random in each call."
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

    @classmethod
    def of(cls, item: Item) -> Check:
        """The check of a trial or probe, as long as nothing fails."""
        return cls(item.name, True, kind=item.kind, hidden=item.secret, sizes=item.sizes)

    def failing(self, message: str, **changes: Any) -> Check:
        """This check with what is wrong."""
        return replace(self, passed=False, message=message, **changes)

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


def compared(plan: Plan, run: Run, expected: Tree, got: Tree) -> Difference | None:
    """How a result differs from the expected one, as the exercise views both."""
    expected = plan.view(run, expected)
    try:
        got = plan.view(run, got)
    except (RuntimeError, TypeError, AttributeError, IndexError, ValueError) as error:
        return Difference(NO_FORM.format(error))
    floating = any(tensor.is_floating_point() for tensor in run.tensors)
    dtype = run.dtype if floating and plan.checks.view is None else None
    tolerance = TOLERANCE[run.dtype]
    return difference(expected, got, tolerance, plan.exercise.words, dtype)


def probe_fault(
    plan: Plan, probe: Probe, expected: list[Tree], results: list[Tree], tolerance: float
) -> str | None:
    """Say what is wrong with the results of a probe's calls, or return None."""
    if probe.judge is None:
        return _leak(plan, expected, results, tolerance)
    try:
        return probe.judge(results)
    except Exception as error:  # the judge is the author's, the results anybody's
        return NO_FORM.format(error)


def _leak(plan: Plan, expected: list[Tree], results: list[Tree], tolerance: float) -> str | None:
    """Say where the answer moves and the reference does not, or the other way round."""
    for want, have in zip(expected[1:], results[1:], strict=True):
        trees = map(leaves, (expected[0], want, results[0], have))
        for pairs in zip(*trees, strict=False):
            path, tensors = pairs[0][0], [leaf for _, leaf in pairs]
            if not all(isinstance(leaf, Tensor) for leaf in tensors):
                continue
            base, changed, mine, my_changed = tensors
            if len({leaf.shape for leaf in tensors}) > 1:
                return f"the shape must be {tuple(base.shape)}, and yours is {tuple(mine.shape)}."
            words = plan.exercise.words.get(path, ())
            does = moved(mine, my_changed, tolerance)
            strays = (does & ~moved(base, changed, 1e-9)).nonzero().tolist()
            if strays:
                return f"your result changed at {named(words, strays[0])}, where it must not."
            # Only a change large enough to be seen in float32 has to show.
            unmoved = (moved(base, changed, 50 * plan.tolerance) & ~does).nonzero().tolist()
            if unmoved:
                return f"{NO_CHANGE} at {named(words, unmoved[0])}: what was changed must show there."
    return None


def judged(plan: Plan, outcomes: Outcomes, choices: Mapping[str, str]) -> Verdict:
    """Every check of the plan, for one answer's outcomes."""
    return _Judge(plan, outcomes, choices).verdict()


class _Judge:
    """An answer's outcomes beside the expected ones, and notes on what is no fault."""

    def __init__(self, plan: Plan, outcomes: Outcomes, choices: Mapping[str, str]) -> None:
        self.plan, self.exercise = plan, plan.exercise
        self.outcomes, self.expected = outcomes, plan.expected(choices)
        self.tolerance = plan.tolerance
        self.notes: list[str] = []

    def verdict(self) -> Verdict:
        """All checks, in the order of a report."""
        values = [run for run in self.plan.runs if run.kind == "value"]
        trials = [check for run in values if (check := self._value(run)) is not None]
        probes = [check for probe in self.plan.checks.probes if (check := self._probe(probe)) is not None]
        checks = [*([self._parameters(values)] if self.exercise.is_class else []), *trials, *probes]
        checks.append(self._unchanged(values))
        right = {check.name for check in trials if check.passed}  # whose ordinary calls are right
        for kind in ("gradients", *VARIANTS):
            runs = [run for run in self.plan.runs if run.kind == kind]
            checks += [self._noted(self._all(kind, runs, right))] if runs else []
        guesses = [guess for run in values for guess in self.outcomes[run.id].unfit.guessed]
        guessed = ", ".join(dict.fromkeys(guesses))
        wrong = any(not check.passed and check.kind == "wrong" for check in checks)
        if guessed and wrong:  # which may be our fault: a question, and no more
            others = [check.failing(UNFIT, difference=None) for check in checks[1:]]
            return Verdict((Check("parameters", False, WHICH.format(guessed)), *others))
        if guessed:
            self.notes.append(f"layers were taken in their order: {guessed}.")
        says = {item.name: item.says for item in self.plan.checks.items}
        for place, check in enumerate(checks):
            sentence = says.get(check.name, "")
            # A sentence on fragility helps only where numbers are right.
            if sentence and not check.passed and not check.whole and (check.kind == "wrong" or not wrong):
                message = f"{check.message} {sentence[0].upper()}{sentence[1:]}".strip()
                checks[place] = replace(check, message=message)
        return Verdict(tuple(checks), tuple(dict.fromkeys(self.notes)))

    def _parameters(self, values: list[Run]) -> Check:
        """Whether the weights have their places.

        Biases that nobody asked for are set to zero; whether they are a fault, the exercise says.
        """
        for run in values:
            unfit = self.outcomes[run.id].unfit
            if run.item.raises:
                continue
            ours, yours = unfit.ours, unfit.yours
            zeroed = ", ".join(unfit.zeroed)
            if zeroed and self.exercise.biases == "none" and not (ours or yours):
                return Check("parameters", False, f"biases that the task does not ask for: {zeroed}.")
            if zeroed and not self.exercise.biases:
                self.notes.append(f"biases that are not asked for were set to zero: {zeroed}.")
            if ours or yours:
                lists = (("Missing", ours), ("Unexpected", yours))
                said = (f"{what} parameters: {', '.join(names)}." for what, names in lists if names)
                text = f"the parameters do not fit. {' '.join(said)}"
                if not yours and len(ours) == len(run.case.weights):
                    text += IN_INIT
                return Check("parameters", False, text)
        return Check("parameters", True)

    def _value(self, run: Run) -> Check | None:
        """The check of a trial's result; None when it does not apply."""
        trial, outcome = run.item, self.outcomes[run.id]
        assert isinstance(trial, Trial)
        check, error = Check.of(trial), outcome.error
        if trial.raises:
            if error is not None and error.type in trial.raises:
                return check
            got = ", and returns a result." if error is None else f": {error_message(error)}"
            return check.failing(f"it must raise {' or '.join(trial.raises)}{got}")
        if error is not None:
            return self._without_result(trial, error)
        wrong = compared(self.plan, run, self.expected[run.id].value, outcome.value)
        if wrong is not None:
            return check.failing(wrong.message, difference=wrong)
        most = int(formula(trial.most_numbers, **trial.sizes)) if trial.most_numbers else outcome.largest
        if outcome.largest > most:
            text = f"a tensor of {outcome.largest} numbers is made on the way; {most} are enough."
            return check.failing(text, kind="wasteful")
        return check

    def _without_result(self, item: Item, error: Failure) -> Check | None:
        """The check of a call that has no result; None for a method that an answer may do without."""
        if item.optional and error.kind == "missing":
            self.notes.append(f"there is no {error.message}: its checks were left out.")
            return None
        return Check.of(item).failing(error_message(error), whole=True)

    def _probe(self, probe: Probe) -> Check | None:
        runs = [run for run in self.plan.runs if run.item is probe]
        for run in runs:
            error = self.outcomes[run.id].error
            if error is not None:
                return self._without_result(probe, error)
        results = [self.outcomes[run.id].value for run in runs]
        expected = [self.expected[run.id].value for run in runs]
        text = probe_fault(self.plan, probe, expected, results, self.tolerance)
        check = Check.of(probe)
        return check if text is None else check.failing(text, whole=text.startswith(NO_CHANGE))

    def _noted(self, check: Check) -> Check:
        """Return the check, passed with a note where it failed in what the task does not ask for."""
        if check.passed or check.name not in self.plan.noted or not check.tried:
            return check
        self.notes.append(f"not counted, {check.name}: {check.message}")
        return replace(check, passed=True, message="")

    def _all(self, kind: str, runs: list[Run], right: set[str]) -> Check:
        """One check over the runs of a kind, gradients or a variant, of the trials that are right."""
        means: Kind = "wrong" if kind == "gradients" else "fragile"
        tried = [run for run in runs if run.item.name in right]
        outcomes = {run: self.outcomes[run.id] for run in runs}
        if kind == "called twice":
            fixed = [outcomes[run] for run in runs if run not in tried and not run.case.train]
            if not all(one.error or same(one.value, one.again, self.tolerance) for one in fixed):
                return Check(kind, False, CHANGES, "wrong")
        if not tried and not all(run.item.optional for run in runs):
            errors = [outcome.error.kind for outcome in outcomes.values() if outcome.error is not None]
            return Check(kind, False, UNFIT if "unfit" in errors else NOT_TRIED, means)
        judge = {"gradients": self._gradients, "device": self._device}.get(kind, self._variant)
        for run in tried:
            error = outcomes[run].error
            text = judge(run, outcomes[run]) if error is None else self._error(kind, error)
            if text:
                return Check(kind, False, f"{run.item.name}: {text}", means, sizes=run.item.sizes)
        return Check(kind, True, kind=means)

    def _error(self, kind: str, error: Failure) -> str:
        """What is wrong with a call that fails though the ordinary one is right; a note where nothing is."""
        for kinds, words, text, is_fault in ERRORS:
            if kind in kinds and any(word in f"{error.type}: {error.message}" for word in words):
                self.notes += [text] if text and not is_fault else []
                return text.format(_at(error)) if is_fault else ""
        return error_message(error)

    def _gradients(self, run: Run, outcome: Outcome) -> str:
        tolerance = self.tolerance * GRADIENT_TOLERANCE
        names = argument_names(self.plan, run)
        unreached, wrong = [], ""
        for name, want in self.expected[run.id].grads.items():
            have, called = outcome.grads.get(name), names.get(name, name)
            assert want is not None  # it is zeros where the reference does not depend on it
            if have is None:
                unreached += [called] if bool(moved(want, torch.zeros_like(want), tolerance).any()) else []
            elif not wrong and (differs := difference(want, have.double(), tolerance)) is not None:
                wrong = f"the gradient of {called} is wrong: {differs.message}"
        if unreached:
            return (
                f"no gradient reaches {', '.join(unreached)}: detach, .data, .item, NumPy or no_grad cut it."
            )
        return wrong

    def _device(self, run: Run, outcome: Outcome) -> str:
        """A missing `device=` shows on the meta device, which has shapes but no numbers."""
        stray = any(isinstance(leaf, Tensor) and leaf.dim() for _, leaf in leaves(outcome.value))
        return "the result is on the CPU, whatever the device of the inputs." if stray else ""

    def _variant(self, run: Run, outcome: Outcome) -> str:
        twice = run.kind == "called twice"
        first = "wrong after a call with other inputs, of which something is kept: " if twice else ""
        second = [(outcome.again, "right the first time, wrong the second: ")] if twice else []
        for value, start in [(outcome.value, first), *second]:
            wrong = compared(self.plan, run, self.expected[run.id].value, value)
            if wrong is not None:
                return f"{start}{wrong.message}"
        return ""

    def _unchanged(self, values: list[Run]) -> Check:
        for run in values:
            changed = self.outcomes[run.id].changed
            if changed:
                names = argument_names(self.plan, run)
                which = ", ".join(names[f"input {index}"] for index in changed if f"input {index}" in names)
                text = f"{run.item.name}: {which} was changed by the call."
                return Check("inputs unchanged", False, text, "fragile")
        return Check("inputs unchanged", True, kind="fragile")


def error_message(error: Failure) -> str:
    """Say what went wrong in a run, in a sentence."""
    if NOT_LENT in error.message:  # by us, and no error of the answer's
        return f"{error.message}{_at(error)}"
    text = f"{error.type}: {error.message}" if error.message else error.type
    raised = f"raises {text}{_at(error)}"
    if error.type == "NotImplementedError":
        return f"not written yet{_at(error)}."
    sentences = {
        "time": f"it is too slow: not finished after {error.message} s of computing{_at(error)}.",
        "slow": f"it is too slow: this call takes {error.message} s of computing.",
        "died": f"it had to be stopped: {error.message}.",
        "unfit": UNFIT,
        "not run": "not run, because calls before it took too long or ended the process.",
        "missing": f"there is no method or function called {error.message}.",
        "unsent": f"its result cannot be compared: {error.message}",
        "construct": f"making it {raised}",
        "gradient": f"its gradient {raised}",
    }
    return sentences.get(error.kind, f"it {raised}")


def _at(error: Failure) -> str:
    return f" ({error.where}: {error.line})" if error.where else ""


def argument_names(plan: Plan, run: Run) -> dict[str, str]:
    """What the student calls the tensors that the harness calls "input 3": the starter's signature tells."""
    exercise, case = plan.exercise, run.case
    node: ast.AST | None = exercise.definitions.get(case.call, exercise.definitions[exercise.names[0]])
    if isinstance(node, ast.ClassDef):
        name = case.call or "forward"
        node = next((part for part in node.body if getattr(part, "name", "") == name), None)
    names: dict[str, str] = {}
    if isinstance(node, ast.FunctionDef) and not exercise.drive_file:
        arguments = [argument.arg for argument in node.args.args if argument.arg != "self"]
        names = {str(place): name for place, name in enumerate(arguments)}
    called: dict[str, str] = {}
    for path, leaf in leaves(dict(enumerate(case.args)) | case.kwargs):
        if isinstance(leaf, Tensor):
            first = path.partition(".")[0]
            unnamed = f"tensor {len(called) + 1} of the arguments" if first.isdigit() else first
            called[f"input {len(called)}"] = names.get(first, unnamed)
    return called
