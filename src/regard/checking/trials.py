"""What checks an exercise: calls drawn at random, a reference made of formulas, trials and probes.

All of it stands in exercise.toml (`regard.checking.spec` shows its tables), and is put together here. A
formula is one Python expression. `trials.py` of the folder, where there is one, has what is code: functions
that formulas, edits and judges call by their names.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import math
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.checking.child.messages import Case as Case
from regard.checking.child.messages import Code as Code
from regard.checking.syntax import formula_names
from regard.errors import LoadError

if TYPE_CHECKING:
    from regard.checking.spec import Exercise, Parts

Kind = Literal["wrong", "fragile", "train mode", "wasteful"]
OURS = Path(__file__).parent.parent / "exercises"

# Where a reference holds this number, any number of an answer is accepted.
ANYTHING = float("inf")


class Impossible(Exception):
    """Raised by a trial's `make` for sizes it cannot be made of; shrinking then tries others."""


def impossible() -> None:
    """For formulas: `width if width % 2 == 0 else impossible()`."""
    raise Impossible


class Draw:
    """Random inputs: `draw.normal(2, 3)`; `draw.sizes` are those of the trial.

    `offer` has choices of conventions that draws depend on, where these are not ours.
    """

    def __init__(self, sizes: Mapping[str, int], seed: int, offer: Mapping[str, str] | None = None) -> None:
        self.sizes = dict(sizes)
        self.offer = offer or {}
        self.generator = torch.Generator().manual_seed(seed % 2**63)

    def normal(self, *shape: int, scale: float = 1.0, mean: float = 0.0) -> Tensor:
        """Normal numbers."""
        return torch.randn(shape, generator=self.generator) * scale + mean

    def weight(self, *shape: int) -> Tensor:
        """Normal numbers over the square root of the last size: a linear layer's (out, in)."""
        return torch.randn(shape, generator=self.generator).div(max(1, shape[-1]) ** 0.5)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Numbers from `low` to `high`."""
        return torch.rand(shape, generator=self.generator) * (high - low) + low

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """Whole numbers from `low` up to and including `high`."""
        return torch.randint(low, high + 1, shape, generator=self.generator)

    def distinct(self, count: int, high: int) -> Tensor:
        """`count` different whole numbers below `high`."""
        return torch.randperm(high, generator=self.generator)[:count]

    def lengths(self, batch: int, longest: int) -> Tensor:
        """One length for each sequence; the first two differ, or one could use the other's unnoticed."""
        lengths = self.integers(1, longest, batch)
        if batch > 1:
            lengths[0], lengths[1] = max(1, longest // 2), longest
        else:  # not full, or a table as wide as the longest sequence would look right
            lengths[0] = max(1, longest - 2)
        return lengths


LISTS = ("args", "options", "init", "init_options", "weights")  # what names draws, of a call
DRAWN = ("normal", "weight", "uniform", "integers", "distinct", "lengths")  # what draws may call


@dataclass(frozen=True)
class Item:
    """What trials and probes have in common."""

    name: str
    make: Callable[[Draw], tuple[Case, ...]]
    sizes: Mapping[str, int] = field(default_factory=dict)
    _: KW_ONLY
    optional: bool = False  # of a method that an answer may do without
    raises: Sequence[str] = ()  # it must raise one of these instead
    secret: bool = False  # results for students show only the name
    kind: Kind = "wrong"  # what a failure means
    says: str = ""  # one sentence shown when it fails; of a probe what was changed and who must not notice


@dataclass(frozen=True)
class Trial(Item):
    """One named call whose result must be the reference's, in value and gradient."""

    grad: bool = True  # compare gradients of every floating input and weight too
    variants: bool = False  # repeat it in other dtypes, non-contiguous, twice, and on the meta device
    most_numbers: str = ""  # a formula of sizes: no tensor made on the way may hold more


@dataclass(frozen=True)
class Probe(Item):
    """Several calls that `make` draws, judged together.

    Without `judge` the first call is the base and each other changes one thing: where the reference does not
    move, the answer must not either, and where it does, the answer must. `judge` gets the results in order
    and returns None or what is wrong.
    """

    judge: Callable[[list[Any]], str | None] | None = None


@dataclass(frozen=True, eq=False)
class Checks:
    """What checks an exercise."""

    reference: Callable[..., Any]  # (case, **choices of the conventions) -> what the call must return
    trials: tuple[Trial, ...]
    probes: tuple[Probe, ...] = ()
    view: Callable[[Case, Any], Any] | None = None  # what is compared, where answers may differ in form

    @property
    def items(self) -> list[Item]:
        """Trials, then probes."""
        return [*self.trials, *self.probes]


Formulas = Mapping[str, Any]  # name or name(parameters) -> a formula, or a table of them
Scope = dict[str, Any]
BASE: Scope = {
    "torch": torch,
    "F": F,
    "math": math,
    "itertools": itertools,
    "Code": Code,
    "ANYTHING": ANYTHING,
    "impossible": impossible,
}


class FormulaError(NameError):
    """A formula that cannot be read."""


@cache
def _code(text: str) -> CodeType:
    """A formula made ready; its file is the formula itself, which an error then shows."""
    try:
        return compile(f"({text})", text, "eval")
    except SyntaxError as error:
        raise FormulaError(f"the formula {text!r} cannot be read: {error.msg}.") from error


def _value(text: str, scope: Scope) -> Any:
    """What a formula gives of the names of a scope."""
    try:
        return eval(_code(text), scope)
    except FormulaError:
        raise
    except NameError as error:
        frames = traceback.walk_tb(error.__traceback__)
        *_, (file, line) = ((f.f_code.co_filename, line) for f, line in frames if f.f_globals is scope)
        names = ", ".join(name for name in scope if name not in BASE and name != "__builtins__")
        text = file.splitlines()[line - 1]
        raise FormulaError(
            f"the formula {text!r} cannot be read: {error}. It may use: torch, {names}."
        ) from error


def formula(text: str, /, **quantities: Any) -> Any:
    """What a formula gives.

    >>> formula("z * h + new", z=2.0, h=3.0, new=0.5)
    6.5
    """
    return _value(text, {**BASE, **quantities})


def _functions_first(formulas: Formulas) -> list[str]:
    return sorted(formulas, key=lambda key: "(" not in key)


def _expression(key: str, formulas: Formulas, choices: Mapping[str, str]) -> str:
    """A formula as Python: of a function its lambda, in which the formulas of a table are worked in turn."""
    name, function, parameters = key.partition("(")
    part = formulas[key]
    if isinstance(part, Mapping):
        inside = {inner: _expression(inner, part, choices) for inner in _functions_first(part)}
        lines = (f"{inner.partition('(')[0]} := ({text})" for inner, text in inside.items())
        text = "[\n{}\n][-1]".format(",\n".join(lines))
    else:
        text = str(choices.get(name, part))
        _code(text)  # alone: what is wrong with it is said of it
    return f"lambda {parameters[:-1]}: ({text})" if function else text


def _worked(formulas: Formulas, choices: Mapping[str, str], scope: Scope) -> Any:
    """The last formula's value; all of them are then in the scope, functions before values."""
    value = None
    for key in _functions_first(formulas):
        value = scope[key.partition("(")[0]] = _value(_expression(key, formulas, choices), scope)
    return value


def worked(formulas: Formulas, choices: Mapping[str, str], /, **quantities: Any) -> Any:
    """The last of several formulas, each of which may use those before it; a choice replaces one by its name.

    A name with parameters makes a function, of one formula or of a table of them that are worked in turn.

    >>> worked({"sum": "a + b", "last": "thrice(sum)", "thrice(x)": "3 * x"}, {"sum": "a * b"}, a=2, b=5)
    30
    """
    return _worked(formulas, choices, {**BASE, **quantities})


class View:
    """The formulas as attributes, for functions of trials.py."""

    def __init__(self, scope: Scope) -> None:
        self.__dict__ = scope

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"there is no formula {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


class Reference:
    """What a call must return: its arguments, weights and conventions go into the formulas."""

    def __init__(self, exercise: Exercise, helpers: Scope) -> None:
        self.formulas, self.call, self.defaults = exercise.formulas, exercise.call, exercise.defaults
        self.functions = {key: part for key, part in self.formulas.items() if "(" in key}
        self.names = {*formula_names(self.formulas)}
        self.ours = {name: next(iter(choices)) for name, choices in exercise.conventions.items()}
        self.known = {**BASE, **helpers, **self.defaults}

    def __call__(self, case: Case, **choices: str) -> Any:
        unknown = ", ".join(sorted({*choices} - self.names - {*self.ours}))
        if unknown:
            raise TypeError(f"there is no {unknown} to choose. There are: {', '.join(sorted(self.names))}.")
        scope = {**self.known, "parameters": case.weights, "train": case.train}
        scope |= {name: choices.get(name, choice) for name, choice in self.ours.items()}
        scope |= zip(self.call.get("init", ()), case.init, strict=False)
        scope |= {**case.init_kwargs, "options": {**self.defaults, **case.init_kwargs, **case.kwargs}}
        scope["formulas"] = View(scope)
        if case.call:  # a method, or one of several functions: a formula of that name
            _worked(self.functions, choices, scope)
            return scope[case.call](*case.args, **case.kwargs)
        names = self.call.get("args", ())
        scope |= zip(names, case.args, strict=False)
        if names and names[-1].startswith("*"):  # all that are left
            scope[names[-1][1:]] = list(case.args[len(names) - 1 :])
        scope |= case.kwargs
        return _worked(self.formulas, choices, scope)


def _names(code: CodeType) -> set[str]:
    """The names that a formula uses."""
    inside = (_names(part) for part in code.co_consts if isinstance(part, CodeType))
    return set(code.co_names).union(*inside)


def _judge(about: Any, helpers: Scope) -> Callable[[list[Any]], str | None]:
    """A function of trials.py by its name, or a formula of `results` that must hold."""
    if isinstance(about, str):
        function: Callable[[list[Any]], str | None] = formula(about, **helpers)
        return function
    return lambda results: None if formula(about["holds"], results=results, **helpers) else about["says"]


class Maker:
    """Draws the calls of one trial or probe: the exercise's, of which it changes some draws."""

    def __init__(self, exercise: Exercise, helpers: Scope, name: str, parts: Parts) -> None:
        flags, sizes, changes = parts
        self.flags = {**flags, **({"judge": _judge(flags["judge"], helpers)} if "judge" in flags else {})}
        self.of, self.helpers, self.edits = f"{exercise.id}, {name!r}", helpers, changes.get("edits", ())
        self.ours = exercise.offers[0]
        draws = {name: str(changes.get(name, text)) for name, text in exercise.draws.items()}
        self.call = {"weights": [name for name in draws if "." in name], **exercise.call, **changes}
        needed = {name.removeprefix("*") for word in LISTS for name in self.call.get(word, ())}
        unknown = ", ".join(sorted(needed - {*draws, *sizes}))
        if unknown:
            names = ", ".join((*draws, *sizes))
            raise LoadError(f"{self.of}: call: {unknown}: no draw and no size. There are: {names}.")
        with self._said():
            for edit in self.edits:
                for text in [edit] if isinstance(edit, str) else edit.values():
                    needed |= _names(_code(str(text)))
            for name in reversed(draws):  # of those before it a draw may use any
                needed |= _names(_code(draws[name])) if name in needed else set()
        self.draws = {name: text for name, text in draws.items() if name in needed}
        self.sizes = {word: size for word, size in sizes.items() if word in needed}

    @contextmanager
    def _said(self) -> Iterator[None]:
        """What is wrong with a formula is said with where it stands."""
        try:
            yield
        except FormulaError as error:
            raise LoadError(f"{self.of}: {error}") from error

    def __call__(self, draw: Draw) -> tuple[Case, ...]:
        """The call, and one for each edit: a function that changes it in place, or other draws."""
        scope = {**BASE, **self.helpers, **{name: getattr(draw, name) for name in DRAWN}, **draw.sizes}
        scope |= {"draw": draw, "as_meant": draw.sizes == self.sizes, **self.ours, **draw.offer}
        with self._said():
            _worked(self.draws, {}, scope)
            cases = [_case(self.call, scope)]
            for edit in self.edits:
                if isinstance(edit, str):
                    cases.append(deepcopy(cases[0]))
                    _value(edit, scope)(cases[-1])
                else:
                    words = (*LISTS, "call", "train")
                    new = {name: _value(str(text), scope) for name, text in edit.items() if name not in words}
                    cases.append(_case({**self.call, **edit}, {**scope, **new}))
        return tuple(cases)


def _case(call: Mapping[str, Any], values: Scope) -> Case:
    """A call; what is `...` is left out."""

    def in_order(word: str) -> tuple[Any, ...]:
        lists = (values[name[1:]] if name.startswith("*") else [values[name]] for name in call.get(word, ()))
        return tuple(value for values in lists for value in values if value is not ...)

    def by_name(word: str) -> dict[str, Any]:
        pairs = {name: values[name] for name in call.get(word, ()) if values[name] is not ...}
        tables = [value if isinstance(value, dict) else {name: value} for name, value in pairs.items()]
        return {name: value for table in tables for name, value in table.items()}

    return Case(
        in_order("args"),
        by_name("options"),
        call.get("call", ""),
        in_order("init"),
        by_name("init_options"),
        by_name("weights"),
        call.get("train", False),
    )


def first_sequence(case: Case) -> None:
    """An edit: everything of sequence 0 is changed, of which a length becomes shorter."""
    for x in case.args:
        if isinstance(x, Tensor):
            x[0] = x[0].flip(-1) + 1.0 if x.is_floating_point() else (x[0] - 1).clamp(min=1)


def later_positions(case: Case) -> None:
    """An edit: what stands in the second half of a sequence is changed."""
    for x in case.args:
        if isinstance(x, Tensor) and x.dim() > 2:
            x[..., x.shape[-2] // 2 + 1 :, :] += 2.0


def load(exercise: Exercise) -> Checks:
    """What exercise.toml says. Functions that it calls by name are in trials.py, which is run: it is trusted
    as any program is.
    """
    helpers: Scope = {"first_sequence": first_sequence, "later_positions": later_positions}
    for path in exercise.modules:
        try:
            module = _module(path)
        except Exception as error:
            raise LoadError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
        helpers |= {
            name: value
            for name, value in vars(module).items()
            if not name.startswith("_") and name != "annotations" and not isinstance(value, ModuleType)
        }
    trials, probes = (
        {name: Maker(exercise, helpers, name, parts) for name, parts in tables.items()}
        for tables in (exercise.trials, exercise.probes)
    )
    return Checks(
        Reference(exercise, helpers),
        tuple(Trial(name, maker, maker.sizes, **maker.flags) for name, maker in trials.items()),
        tuple(Probe(name, maker, maker.sizes, **maker.flags) for name, maker in probes.items()),
        helpers.get("view"),
    )


def _module(path: Path) -> ModuleType:
    """Ours by its name; a teacher's by its place, with what lies beside its folder in reach."""
    folder = path.parent.resolve()
    if folder.parent == OURS.resolve():
        return importlib.import_module(f"regard.exercises.{folder.name}.{path.stem}")
    name = f"regard_exercise_{folder.name}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    around = str(folder.parent)
    sys.path.insert(0, around)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(around)
    return module
