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
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass, field
from functools import cache, partial
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
    """Random inputs: `draw.normal(2, 3)`; `draw.sizes` are those of the trial."""

    def __init__(self, sizes: Mapping[str, int], seed: int) -> None:
        self.sizes = dict(sizes)
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
    make: Callable[[Draw], Any]
    sizes: Mapping[str, int] = field(default_factory=dict)
    _: KW_ONLY
    optional: bool = False  # of a method that an answer may do without
    raises: Sequence[str] = ()  # it must raise one of these instead
    hidden: bool = False  # results for students show only the name
    kind: Kind = "wrong"  # what a failure means
    says: str = ""  # one sentence shown when it fails; of a probe what was changed and who must not notice


@dataclass(frozen=True)
class Trial(Item):
    """One named call whose result must be the reference's, in value and gradient."""

    grad: bool = True  # compare gradients of every floating input and weight too
    variants: bool = False  # repeat it in other dtypes, non-contiguous, twice, and on the meta device
    most_numbers: Callable[[Mapping[str, int]], int] | None = None  # no tensor made on the way may hold more


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
def _readable(text: str) -> CodeType:
    """A formula's code."""
    try:
        return compile(f"({text})", "formula", "eval")
    except SyntaxError as error:
        raise FormulaError(f"the formula {text!r} cannot be read: {error}.") from error


def _unknown(text: str, error: NameError, scope: Scope) -> FormulaError:
    names = ", ".join(name for name in scope if name not in BASE and name != "__builtins__")
    return FormulaError(f"the formula {text!r} cannot be read: {error}. It may use: torch, {names}.")


def _value(text: str, scope: Scope) -> Any:
    try:
        return eval(_readable(text), scope)
    except FormulaError:
        raise
    except NameError as error:
        raise _unknown(text, error, scope) from error


def formula(text: str, /, **quantities: Any) -> Any:
    """What a formula gives.

    >>> formula("z * h + new", z=2.0, h=3.0, new=0.5)
    6.5
    """
    return _value(text, {**BASE, **quantities})


Lines = tuple[tuple[str, str], ...]  # a line of Python, and the formula that stands in it
_LINES: dict[str, Lines] = {}  # of each code that was made of formulas, by its file name


def _lines(formulas: Formulas, choices: Mapping[str, str], indent: str = "") -> Lines:
    """Formulas as Python: functions come before values, wherever they stand."""
    lines: list[tuple[str, str]] = []
    for key, right in sorted(formulas.items(), key=lambda pair: "(" not in pair[0]):
        name, function, _ = key.partition("(")
        if isinstance(right, Mapping):
            *_, last = (inner for inner in right if "(" not in inner)
            inside = _lines(right, choices, f"{indent} ")
            lines += [(f"{indent}def {key}:", key), *inside, (f"{indent} return {last}", key)]
        else:
            text = choices.get(name, right)
            lines.append((f"{indent}{f'def {key}: return' if function else f'{name} ='} ({text})", text))
    return tuple(lines)


@cache
def _made(lines: Lines) -> CodeType:
    file = f"formulas {len(_LINES)}"
    _LINES[file] = lines
    try:
        return compile("\n".join(line for line, _ in lines), file, "exec")
    except SyntaxError:
        for _, text in lines:
            _readable(text)
        raise


class Program:
    """Formulas made into Python, for choices that replace some of them by their names."""

    def __init__(self, formulas: Formulas, choices: Mapping[str, str]) -> None:
        functions = {key: part for key, part in formulas.items() if "(" in key}
        values = {key: part for key, part in formulas.items() if "(" not in key}
        # Functions that a choice changes are defined again, after those that all choices have in common.
        chosen = {key for key, part in functions.items() if {*choices} & {*formula_names({key: part})}}
        again = {key: functions[key] for key in functions if key in chosen}
        self.functions = [_made(_lines(functions, {})), _made(_lines(again, choices))]
        self.values, self.last = _made(_lines(values, choices)), next(reversed(values), "")

    def run(self, scope: Scope, *, functions_alone: bool = False) -> Any:
        """The last value; all of them, and the functions, are then in the scope."""
        try:
            for code in self.functions if functions_alone else [*self.functions, self.values]:
                exec(code, scope)
        except FormulaError:
            raise
        except NameError as error:
            frames = [
                frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in _LINES
            ]
            line = _LINES[frames[-1].filename][(frames[-1].lineno or 1) - 1]
            raise _unknown(line[1], error, scope) from error
        return scope.get(self.last)


def worked(formulas: Formulas, choices: Mapping[str, str], /, **quantities: Any) -> Any:
    """The last of several formulas, each of which may use those before it; a choice replaces one by its name.

    A name with parameters makes a function, of one formula or of a table of them that are worked in turn.

    >>> worked({"sum": "a + b", "last": "thrice(sum)", "thrice(x)": "3 * x"}, {"sum": "a * b"}, a=2, b=5)
    30
    """
    return Program(formulas, choices).run({**BASE, **quantities})


class Reference:
    """What a call must return: its arguments, weights and conventions go into the formulas."""

    def __init__(self, exercise: Exercise, helpers: Scope) -> None:
        self.formulas, self.call, self.helpers = exercise.formulas, exercise.call, helpers
        self.names = {*formula_names(self.formulas)}
        self.programs: dict[tuple[str, ...], Program] = {}
        self.ours = {convention.name: next(iter(convention.choices)) for convention in exercise.conventions}
        self.defaults = exercise.defaults

    def __call__(self, case: Case, **choices: str) -> Any:
        unknown = ", ".join(sorted({*choices} - self.names - {*self.ours}))
        if unknown:
            raise TypeError(f"there is no {unknown} to choose. There are: {', '.join(sorted(self.names))}.")
        scope = {**BASE, **self.helpers, **self.defaults, "parameters": case.weights, "train": case.train}
        scope |= {name: choices.get(name, choice) for name, choice in self.ours.items()}
        scope |= zip(self.call.get("init", ()), case.init, strict=False)
        scope |= {**case.init_kwargs, "options": {**self.defaults, **case.init_kwargs, **case.kwargs}}
        scope["formulas"] = View(scope)
        key = tuple(part for name, text in choices.items() if name in self.names for part in (name, text))
        program = self.programs.get(key) or self.programs.setdefault(key, Program(self.formulas, choices))
        if case.call:  # a method, or one of several functions: a formula of that name
            program.run(scope, functions_alone=True)
            return scope[case.call](*case.args, **case.kwargs)
        scope |= {**_named(self.call.get("args", ()), case.args), **case.kwargs}
        return program.run(scope)


class View:
    """The formulas as attributes, for functions of trials.py."""

    def __init__(self, scope: Scope) -> None:
        self.__dict__["scope"] = scope

    def __getattr__(self, name: str) -> Any:
        return self.__dict__["scope"][name]

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__["scope"][name] = value


def _named(names: Sequence[str], args: Sequence[Any]) -> Scope:
    """Arguments by their names; `*name` takes all that are left."""
    values = dict(zip(names, args, strict=False))
    if names and names[-1].startswith("*"):
        values[names[-1][1:]] = list(args[len(names) - 1 :])
    return values


def _names(code: CodeType) -> set[str]:
    """The names that a formula uses."""
    inside = (_names(part) for part in code.co_consts if isinstance(part, CodeType))
    return set(code.co_names).union(*inside)


class Maker:
    """Draws the calls of one trial or probe: the exercise's, of which it changes some draws."""

    def __init__(self, exercise: Exercise, helpers: Scope, name: str, parts: Parts) -> None:
        flags, sizes, changes = parts
        edits = flags.get("edits", ())
        self.of, self.helpers, self.edits = f"{exercise.id}, {name!r}", helpers, edits
        draws = {name: changes.get(name, text) for name, text in exercise.draws.items()}
        self.call = {"weights": [name for name in draws if "." in name], **exercise.call, **changes}
        self.needed = {name.removeprefix("*") for word in LISTS for name in self.call.get(word, ())}
        unknown = ", ".join(sorted(self.needed - {*draws, *sizes}))
        if unknown:
            names = ", ".join((*draws, *sizes))
            raise LoadError(f"{self.of}: call: {unknown}: no draw and no size. There are: {names}.")
        for edit in edits:
            for text in [edit] if isinstance(edit, str) else edit.values():
                self.needed |= self._names(text)
        for name in reversed(draws):  # of those before it a draw may use any
            self.needed |= self._names(draws[name]) if name in self.needed else set()
        self.draws = {name: text for name, text in draws.items() if name in self.needed}
        self.sizes = {word: size for word, size in sizes.items() if word in self.needed}

    def _names(self, text: Any) -> set[str]:
        return _names(self._worked(_readable, text)) if isinstance(text, str) else set()

    def _worked(self, work: Callable[..., Any], *args: Any) -> Any:
        try:
            return work(*args)
        except FormulaError as error:
            raise LoadError(f"{self.of}: {error}") from error

    def value(self, text: Any, scope: Scope) -> Any:
        """What a draw gives; a number stands for itself."""
        return self._worked(_value, text, scope) if isinstance(text, str) else text

    def drawn(self, draw: Draw) -> Scope:
        """Every draw by its name, beside sizes and functions."""
        scope = {**BASE, **self.helpers, **{name: getattr(draw, name) for name in DRAWN}, **draw.sizes}
        scope |= {"draw": draw, "as_meant": draw.sizes == self.sizes}
        for name, text in self.draws.items():
            scope[name] = self.value(text, scope)
        return scope

    def case(self, values: Scope, changes: Mapping[str, Any] | None = None) -> Case:
        """The call; what is `...` is left out."""
        call = {**self.call, **(changes or {})}
        args: list[Any] = []
        for name in call.get("args", ()):
            args += values[name[1:]] if name.startswith("*") else [values[name]]

        def by_name(word: str) -> dict[str, Any]:
            pairs = {name: values[name] for name in call.get(word, ()) if values[name] is not ...}
            tables = [value if isinstance(value, dict) else {name: value} for name, value in pairs.items()]
            return {name: value for table in tables for name, value in table.items()}

        return Case(
            tuple(value for value in args if value is not ...),
            by_name("options"),
            call.get("call", ""),
            tuple(values[name] for name in call.get("init", ())),
            by_name("init_options"),
            by_name("weights"),
            call.get("train", False),
        )

    def trial(self, draw: Draw) -> Case:
        """The call of a trial."""
        return self.case(self.drawn(draw))

    def probe(self, draw: Draw) -> tuple[Case, ...]:
        """The call, and one for each edit: a function that changes it in place, or other draws."""
        values = self.drawn(draw)
        cases = [self.case(values)]
        for edit in self.edits:
            if isinstance(edit, str):
                cases.append(deepcopy(cases[0]))
                self.value(edit, values)(cases[-1])
            else:
                new = {
                    name: self.value(text, values)
                    for name, text in edit.items()
                    if name not in (*LISTS, "call", "train")
                }
                cases.append(self.case({**values, **new}, edit))
        return tuple(cases)


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


EDITS: Scope = {"first_sequence": first_sequence, "later_positions": later_positions}


def _judge(about: Any, helpers: Scope) -> Callable[[list[Any]], str | None]:
    """A function of trials.py by its name, or a formula of `results` that must hold."""
    if isinstance(about, str):
        function: Callable[[list[Any]], str | None] = formula(about, **helpers)
        return function
    return lambda results: None if formula(about["holds"], results=results, **helpers) else about["says"]


def load(exercise: Exercise) -> Checks:
    """What exercise.toml says. Functions that it calls by name are in trials.py, which is run: it is trusted
    as any program is.
    """
    helpers = dict(EDITS)
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
    trials, probes = [], []
    for name, parts in exercise.trials.items():
        maker, flags = Maker(exercise, helpers, name, parts), dict(parts[0])
        if "most_numbers" in flags:
            flags["most_numbers"] = partial(_largest, flags["most_numbers"])
        trials.append(Trial(name, maker.trial, maker.sizes, **flags))
    for name, parts in exercise.probes.items():
        maker, flags = Maker(exercise, helpers, name, parts), dict(parts[0])
        flags.pop("edits", None)
        if "judge" in flags:
            flags["judge"] = _judge(flags["judge"], helpers)
        probes.append(Probe(name, maker.probe, maker.sizes, **flags))
    return Checks(Reference(exercise, helpers), tuple(trials), tuple(probes), helpers.get("view"))


def _largest(text: str, sizes: Mapping[str, int]) -> int:
    return int(formula(text, **sizes))


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
