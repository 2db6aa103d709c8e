"""What `trials.py` of an exercise is written in: cases drawn at random, trials, and probes.

def numbers(draw):
    return Case((draw.normal("batch", "position"),))

TRIALS = (Trial("several sequences", numbers, {"batch": 2, "position": 3}),)
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Literal

import torch
from torch import Tensor

from regard.checking.child.messages import Case as Case
from regard.checking.child.messages import Code as Code
from regard.errors import LoadError

Kind = Literal["wrong", "fragile", "train mode", "wasteful"]
OURS = Path(__file__).parent.parent / "exercises"

# Where a reference holds this number, any number of an answer is accepted.
ANYTHING = float("inf")


class Impossible(Exception):
    """Raised by a trial's `make` for sizes it cannot be made of; shrinking then tries others."""


class Draw:
    """Random inputs of named sizes: `draw.normal("batch", "query", 3)`, `draw["batch"]`."""

    def __init__(self, sizes: Mapping[str, int], seed: int) -> None:
        self.sizes = dict(sizes)
        self.generator = torch.Generator().manual_seed(seed % 2**63)

    def __getitem__(self, word: str) -> int:
        return self.sizes[word]

    def shape(self, dims: Sequence[str | int]) -> tuple[int, ...]:
        """The sizes of `dims`, where a word stands for its size."""
        return tuple(self.sizes[dim] if isinstance(dim, str) else dim for dim in dims)

    def normal(self, *dims: str | int, scale: float = 1.0, mean: float = 0.0) -> Tensor:
        """Normal numbers."""
        return torch.randn(self.shape(dims), generator=self.generator) * scale + mean

    def weight(self, *dims: str | int) -> Tensor:
        """Normal numbers over the square root of the last size: a linear layer's (out, in)."""
        shape = self.shape(dims)
        return torch.randn(shape, generator=self.generator).div(max(1, shape[-1]) ** 0.5)

    def uniform(self, *dims: str | int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Numbers from `low` to `high`."""
        return torch.rand(self.shape(dims), generator=self.generator) * (high - low) + low

    def integers(self, low: int, high: int, *dims: str | int) -> Tensor:
        """Whole numbers from `low` up to and including `high`."""
        return torch.randint(low, high + 1, self.shape(dims), generator=self.generator)

    def distinct(self, count: int, high: int) -> Tensor:
        """`count` different whole numbers below `high`."""
        return torch.randperm(high, generator=self.generator)[:count]


Calls = Callable[[Draw], tuple[Case, ...]]


@dataclass(frozen=True)
class Item:
    """What trials and probes have in common."""

    name: str
    make: Callable[[Draw], Any]
    sizes: Mapping[str, int] = field(default_factory=dict)
    _: KW_ONLY
    optional: bool = False  # of a method that an answer may do without
    raises: tuple[str, ...] = ()  # it must raise one of these instead
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
    """What an exercise's `trials.py` defines: `reference`, `TRIALS` and, if it has them, `PROBES`, `view`."""

    reference: Callable[..., Any]  # (case, **choices of the conventions) -> what the call must return
    trials: tuple[Trial, ...]
    probes: tuple[Probe, ...] = ()
    view: Callable[[Case, Any], Any] | None = None  # what is compared, where answers may differ in form

    @property
    def items(self) -> list[Item]:
        """Trials, then probes."""
        return [*self.trials, *self.probes]


@cache
def _compiled(text: str) -> CodeType:
    return compile(text, "formula", "eval")


def formula(text: str, /, **quantities: Any) -> Any:
    """What a decision gives that is written as a formula, so that exercise.toml can hold a wrong one.

    >>> formula("z * h + new", z=2.0, h=3.0, new=0.5)
    6.5
    """
    try:
        return eval(_compiled(text), {"torch": torch, **quantities})
    except (SyntaxError, NameError) as error:
        names = ", ".join(["torch", *quantities])
        raise NameError(f"the formula {text!r} cannot be read: {error}. It may use: {names}.") from error


def worked(formulas: Mapping[str, str], choices: Mapping[str, str], /, **quantities: Any) -> Any:
    """The last of several formulas, each of which may use those before it; a choice replaces one by its name.

    >>> worked({"mean": "(a + b) / 2", "scaled": "3 * mean"}, {"mean": "a * b"}, a=2, b=5)
    30
    """
    unknown = ", ".join(sorted(set(choices) - set(formulas)))
    if unknown:
        raise TypeError(f"there is no {unknown} to choose. There are: {', '.join(formulas)}.")
    for name, right in formulas.items():
        quantities[name] = formula(choices.get(name, right), **quantities)
    return quantities[name]


def parted(choices: Mapping[str, str], *tables: Mapping[str, str]) -> list[dict[str, str]]:
    """The choices that replace something of each table of formulas, and those that are left."""
    parts = [{name: choices[name] for name in table if name in choices} for table in tables]
    known = {name for table in tables for name in table}
    return [*parts, {name: choice for name, choice in choices.items() if name not in known}]


def changed(make: Callable[[Draw], Case], *edits: Callable[[Case, Draw], object]) -> Calls:
    """A call, and copies of it, each of which an edit changes in place: what a probe is made of."""

    def calls(draw: Draw) -> tuple[Case, ...]:
        base = make(draw)
        cases = [base, *(deepcopy(base) for _ in edits)]
        for case, edit in zip(cases[1:], edits, strict=True):
            edit(case, draw)
        return tuple(cases)

    return calls


def first_sequence(case: Case, draw: Draw) -> None:
    """An edit: everything of sequence 0 is changed, of which a length becomes shorter."""
    for x in case.args:
        if isinstance(x, Tensor):
            x[0] = x[0].flip(-1) + 1.0 if x.is_floating_point() else (x[0] - 1).clamp(min=1)


def neighbour_probe(make: Callable[[Draw], Case], sizes: Mapping[str, int]) -> Probe:
    """Whether a sequence is left alone by what becomes of the one beside it."""
    says = "sequence 0 was changed: the others may not move."
    calls = changed(make, first_sequence)
    return Probe("a neighbour has no say", calls, {**sizes, "batch": 3}, says=says)


def load(folder: Path) -> Checks:
    """What the folder's `trials.py` defines. It is run: it is trusted as any program is."""
    path = folder / "trials.py"
    try:
        module = _module(path)
        checks = Checks(
            module.reference, module.TRIALS, getattr(module, "PROBES", ()), getattr(module, "view", None)
        )
    except Exception as error:
        raise LoadError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    names = [item.name for item in checks.items]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise LoadError(f"{path}: trials and probes must have different names. Twice: {twice}.")
    return checks


def _module(path: Path) -> ModuleType:
    """Ours by its name; a teacher's by its place, with what lies beside its folder in reach."""
    folder = path.parent.resolve()
    if folder.parent == OURS.resolve():
        return importlib.import_module(f"regard.exercises.{folder.name}.trials")
    name = f"regard_exercise_{folder.name}"
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
