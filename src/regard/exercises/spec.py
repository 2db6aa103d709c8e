"""What an exercise is: a task, a reference, right answers, known mistakes, and trials to tell them apart.

A file of this folder that ends in `EXERCISE = Exercise(...)` is an exercise; its name is the id with
underscores. Answers, mistakes and all else that runs beside a student's code is source text, because it runs
in a process where regard cannot be imported. Only the reference runs here, and calls our library.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from regard.errors import ArgumentError

Kind = Literal["wrong", "fragile", "train mode", "wasteful"]
GRADES = ("symptom", "place", "cause", "fix")
NOTHING: Mapping[str, Any] = {}


# Where a reference holds this number, any number of an answer is accepted.
ANYTHING = float("inf")


# The convention of this name says which layers may do without their biases: "used", or "without q k v".
BIAS = "bias"


def left_out(choice: str) -> frozenset[str]:
    """The biases that a choice of the convention `bias` does without.

    >>> sorted(left_out("without q v"))
    ['q.bias', 'v.bias']
    """
    return frozenset(f"{layer}.bias" for layer in choice.removeprefix("without ").split() if choice != "used")


class Impossible(Exception):
    """Raised by a trial's `make` for sizes it cannot be made of; shrinking then tries others."""


@dataclass(frozen=True, slots=True)
class Code:
    """A function given as an argument: an expression, evaluated where the answer runs, beside torch."""

    source: str

    def value(self) -> Any:
        """The function itself, for the reference."""
        return eval(self.source, {"torch": torch})


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One call of the answer. Tensors may stand anywhere in `args` and `kwargs`, also in tuples and lists."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    call: str = ""  # a method of the module, or one of several functions; "" is the module or function itself
    init: tuple[Any, ...] = ()  # the constructor's positional arguments, for a class
    init_kwargs: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, Tensor] = field(default_factory=dict)  # as in the module's state_dict
    train: bool = False  # module.train() in place of module.eval()

    def with_args(self, *args: Any) -> Case:
        """The same call with other arguments: what a perturbation is made of."""
        return replace(self, args=args)


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


@dataclass(frozen=True)
class Trial:
    """One named call whose result must be the reference's, in value and gradient."""

    name: str
    make: Callable[[Draw], Case]
    sizes: Mapping[str, int] = field(default_factory=dict)
    grad: bool = True  # compare gradients of every floating input and weight too
    variants: bool = False  # repeat it in other dtypes, non-contiguous, twice, and on the meta device
    optional: bool = False  # a method that an answer may do without
    raises: tuple[str, ...] = ()  # it must raise one of these instead
    most_numbers: Callable[[Mapping[str, int]], int] | None = None  # no tensor made on the way may hold more
    hidden: bool = False  # results for students show only the name
    kind: Kind = "wrong"  # what a failure of this trial means
    says: str = ""  # one sentence shown when it fails


@dataclass(frozen=True)
class Probe:
    """Several calls judged together.

    Without `judge` the first call is the base and each other changes one thing: where the reference does not
    move, the answer must not either, and where it does, the answer must. `judge` gets the results in order
    and returns None or what is wrong.
    """

    name: str
    make: Callable[[Draw], tuple[Case, ...]]
    sizes: Mapping[str, int] = field(default_factory=dict)
    judge: Callable[[list[Any]], str | None] | None = None
    optional: bool = False
    hidden: bool = False
    kind: Kind = "wrong"
    says: str = ""  # what was changed and who must not notice, in one sentence


@dataclass(frozen=True)
class Convention:
    """A question the task leaves open. `name` is a keyword of the reference; the first choice is ours."""

    name: str
    choices: Mapping[str, str]  # choice -> the sentence a student reads whose answer chose it

    def __post_init__(self) -> None:
        if len(self.choices) < 2:
            raise ArgumentError(
                f"convention {self.name!r} needs at least two choices. Got {list(self.choices)}."
            )


@dataclass(frozen=True)
class Right:
    """Another correct way to write it, as source text that needs nothing but torch."""

    name: str
    source: str


@dataclass(frozen=True)
class Mistake:
    """A small wrong version: edits of a right variant, or a source of its own.

    `hints` are four sentences, from the least telling: symptom, place, cause, fix.
    """

    name: str
    hints: tuple[str, str, str, str]
    edits: tuple[tuple[str, str], ...] = ()
    of: int = 0  # which right variant is edited
    source: str = ""

    def __post_init__(self) -> None:
        if bool(self.edits) == bool(self.source):
            raise ArgumentError(f"mistake {self.name!r} needs edits or a source: give one of them.")
        if len(self.hints) != len(GRADES):
            raise ArgumentError(
                f"mistake {self.name!r} needs the hints {', '.join(GRADES)}. Got {self.hints}."
            )


@dataclass(frozen=True, eq=False)
class Exercise:
    """One task and everything that checks it."""

    id: str
    title: str
    names: tuple[str, ...]  # what an answer defines: one class, or one or more functions
    task: str
    starter: str
    reference: Callable[..., Any]  # (case, **choices) -> what the call must return
    right: tuple[Right, ...]
    mistakes: tuple[Mistake, ...]
    trials: tuple[Trial, ...]
    hints: tuple[str, str, str, str]  # for an answer whose mistake has no name
    probes: tuple[Probe, ...] = ()
    conventions: tuple[Convention, ...] = ()
    words: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # output -> its dimensions, for reports
    view: Callable[[Case, Any], Any] | None = None  # what is compared, where answers may differ in form
    drive: str = ""  # source of `drive(answer, *args, **kwargs)`, where one call is not enough
    tolerance: float = 1.0  # times the usual one, with a reason beside it
    needs: tuple[str, ...] = ()  # ids of exercises an answer may call and a file may leave out

    def __post_init__(self) -> None:
        items: list[Trial | Probe] = [*self.trials, *self.probes]
        for what, names in (
            ("right variants", [each.name for each in self.right]),
            ("mistakes", [each.name for each in self.mistakes]),
            ("trials and probes", [each.name for each in items]),
        ):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ArgumentError(f"{self.id}: {what} must have different names. Twice: {twice}.")

    @cached_property
    def is_class(self) -> bool:
        """Whether the answer is a class."""
        return isinstance(self.definitions()[self.names[0]], ast.ClassDef)

    @cached_property
    def has_bias_option(self) -> bool:
        """Whether the constructor is told if there are biases: then one too many is a mistake."""
        return any(
            isinstance(part, ast.FunctionDef)
            and part.name == "__init__"
            and any(argument.arg == "bias" for argument in part.args.args)
            for part in self.definitions()[self.names[0]].body
        )

    def definitions(self) -> dict[str, ast.FunctionDef | ast.ClassDef]:
        """What the starter defines: the signatures that tell which exercise a file answers."""
        found = {
            node.name: node
            for node in ast.parse(self.starter).body
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
        }
        missing = [name for name in self.names if name not in found]
        if missing:
            raise ArgumentError(f"{self.id}: the starter does not define {', '.join(missing)}.")
        return found

    def source_of(self, *mistakes: Mistake) -> str:
        """The wrong version: all edits of the given mistakes, which must edit the same right variant."""
        if len(mistakes) == 1 and mistakes[0].source:
            return mistakes[0].source
        (of,) = {mistake.of for mistake in mistakes}
        source = self.right[of].source
        for mistake in mistakes:
            for old, new in mistake.edits:
                if source.count(old) != 1:
                    raise ArgumentError(
                        f"{self.id}: an edit of mistake {mistake.name!r} must match once in right variant "
                        f"{self.right[of].name!r}. {old!r} is there {source.count(old)} times."
                    )
                source = source.replace(old, new)
        return source
