"""What the checker and the process that runs an answer say to one another, and the nests of values in it.

The checker sends a `Job`. Back come a `Statement` before it runs, where it may not end, `LoadReport`, and an
`Outcome` for each run. No message to an answer holds an expected value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, is_dataclass
from typing import Any

import torch
from torch import Tensor

Tree = Any  # nests of lists, tuples and dicts with tensors, numbers, texts, None, `Code`, `NotData`


@dataclass(frozen=True, slots=True)
class Code:
    """A function given as an argument: an expression, evaluated where the answer runs, beside torch."""

    source: str

    def value(self) -> Any:
        """The function itself."""
        return eval(self.source, {"torch": torch})


@dataclass(frozen=True, slots=True)
class NotData:
    """In place of a result that is no data, in words: "a Linear"."""

    what: str


@dataclass(frozen=True, slots=True)
class Cell:
    """A piece of a file that parses on its own: a whole script, or a notebook's cell."""

    label: str  # "" for a script, "cell 3, " for a notebook
    source: str


@dataclass(frozen=True, slots=True)
class ShapeNote:
    """A shape comment: which lines it stands beside, and what it says of the shapes before and after."""

    label: str
    start: int
    line: int
    text: str
    target: str
    loads: list[str]
    before: list[str] | None
    after: list[str]


@dataclass(frozen=True, slots=True)
class Answer:
    """A file to execute, and what of it is called."""

    cells: list[Cell]
    subjects: dict[str, int]  # what is checked -> the number of its statement; -1 for the last one
    is_class: bool = False
    drive: str = ""  # source of `drive(answer, *args, **kwargs)`, which makes the call
    lent: dict[str, str] = field(default_factory=dict)  # what it uses without defining it -> source of it
    d2l: list[str] = field(default_factory=list)  # sources of the lent package, which has not the subjects
    imported: list[str] = field(default_factory=list)  # modules it names, stubbed where they are missing
    folders: list[str] = field(default_factory=list)  # where it may import from
    notes: list[ShapeNote] = field(default_factory=list)
    skip: list[int] = field(default_factory=list)  # statements that are left out


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One call of the answer. Tensors may stand anywhere in `args` and `kwargs`, also in tuples and lists."""

    args: Tree = ()
    kwargs: dict[str, Tree] = field(default_factory=dict)
    call: str = ""  # a method of the module, or one of several functions; "" is the module or function itself
    init: Tree = ()  # the constructor's positional arguments, for a class
    init_kwargs: dict[str, Tree] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)  # as in the module's state_dict
    train: bool = False  # module.train() in place of module.eval()


@dataclass(frozen=True, slots=True)
class Order:
    """One run: a call, and how it is made."""

    id: int
    case: Case
    kind: str = "value"  # "gradients", or a variant: see plan.py
    dtype: str = ""  # repeat it in this dtype, which new tensors have then too
    largest: bool = False  # note the largest tensor made on the way
    watched: bool = False  # compare shape comments


@dataclass(frozen=True, slots=True)
class Job:
    """Runs to make with an answer, and what it may take."""

    answer: Answer
    orders: list[Order]
    seconds: float  # of work in one call
    memory: int  # bytes beyond what torch itself takes
    must_confine: bool  # refuse to run it where our files cannot be kept from it


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a run has no result: an exception, a limit, or the end of the process."""

    # "error", "construct", "gradient", "time" (not finished), "slow" (finished, and too late), "missing",
    # "died", "not run", "unsent" or "unfit"
    kind: str
    type: str = ""
    message: str = ""
    where: str = ""  # the answer's own line
    line: str = ""


@dataclass(frozen=True, slots=True)
class Unfit:
    """Parameters without a counterpart, with their shapes; biases that were set to zero instead."""

    ours: list[str] = field(default_factory=list)
    yours: list[str] = field(default_factory=list)
    zeroed: list[str] = field(default_factory=list)
    guessed: list[str] = field(default_factory=list)  # places that the order of the layers alone tells


@dataclass(frozen=True, slots=True)
class SeenShapes:
    """The shapes before and after a commented line, in one call of the function around it."""

    note: int
    call: int
    before: dict[str, list[int] | None]
    after: list[int] | None


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement that is about to be executed and may end the process, or why it was left out."""

    where: str
    number: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What executing the file gave."""

    skipped: list[Statement] = field(default_factory=list)
    stubbed: list[str] = field(default_factory=list)
    d2l: bool = False
    missing: list[str] = field(default_factory=list)  # subjects that nothing defines
    died: str = ""  # why it could not be executed at all
    unconfined: list[str] = field(default_factory=list)  # what the system did not keep from it
    doubled: list[str] = field(default_factory=list)  # lines that take the softmax of probabilities

    @property
    def problem(self) -> str:
        """Why nothing can be checked, or an empty text."""
        if self.died:
            return f"the file cannot be run: {self.died}."
        if self.missing:
            reasons = "; ".join(f"{statement.where}: {statement.reason}" for statement in self.skipped)
            return f"{', '.join(self.missing)} could not be defined: {reasons or 'nothing defines it'}."
        return ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one run."""

    run: int = 0
    value: Tree = None
    again: Tree = None  # of a second call
    grads: dict[str, Tensor | None] = field(default_factory=dict)
    changed: list[int] = field(default_factory=list)  # inputs that are no longer what they were
    largest: int = 0
    unfit: Unfit = field(default_factory=Unfit)
    error: Failure | None = None
    seconds: float = 0.0  # of computing
    doubled: list[str] = field(default_factory=list)  # lines that take the softmax of probabilities
    seen: list[SeenShapes] = field(default_factory=list)


CLASSES: dict[str, Any] = {name: item for name, item in list(globals().items()) if is_dataclass(item)}


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of nested lists, tuples and dicts, with where it stands: "0", "1.hidden"."""
    if isinstance(tree, list | tuple):
        for index, item in enumerate(tree):
            yield from leaves(item, f"{path}.{index}" if path else str(index))
    elif isinstance(tree, dict):
        for key, item in tree.items():
            yield from leaves(item, f"{path}.{key}" if path else str(key))
    else:
        yield path, tree


def mapped(tree: Any, change: Callable[[Any], Any]) -> Any:
    """The tree with `change` applied to each leaf."""
    if isinstance(tree, tuple):
        return tuple(mapped(item, change) for item in tree)
    if isinstance(tree, list):
        return [mapped(item, change) for item in tree]
    if isinstance(tree, dict):
        return {key: mapped(item, change) for key, item in tree.items()}
    return change(tree)


def gradients(value: Any, wanted: dict[str, Tensor]) -> dict[str, Tensor | None]:
    """Gradients of the sum of all numbers of a result, each times one drawn at random.

    None for what it does not depend on. The checker and the process that runs answers draw the same numbers.
    """
    generator = torch.Generator().manual_seed(17)
    terms = []
    for _, leaf in leaves(value):
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            factor = torch.randn(leaf.shape, generator=generator, dtype=torch.float32).to(leaf.dtype)
            terms += [(leaf * factor).sum()] if leaf.requires_grad else []
    if not terms:
        return {}
    grads = torch.autograd.grad(terms, list(wanted.values()), allow_unused=True)
    return dict(zip(wanted, grads, strict=True))
