"""The forms in which a right result is returned wrongly: `form` is a choice that every exercise has.

Its parts in another order, its axes elsewhere, or a function of its numbers. An IndexError or RuntimeError
says that a result cannot have the form.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.checking.child.messages import Tree, mapped

FORM = "form"  # the choice that every reference has, without knowing
TIMES = "times a number"  # which number, only the answer tells: naming looks for it


class Whatever:
    """Stands for any part of a result."""


def _each(change: Callable[[Tensor], Any]) -> Callable[[Tree], Tree]:
    """The same done to every tensor of a result."""
    return lambda tree: mapped(tree, lambda leaf: change(leaf) if isinstance(leaf, Tensor) else leaf)


FORMS: dict[str, Callable[[Tree], Tree]] = {
    "": lambda result: result,
    "nothing": lambda result: None,
    "the first part": lambda result: _parts(result)[0],
    "the last part": lambda result: _parts(result)[-1],
    "without the first part": lambda result: _parts(result)[1:],
    "without the last part": lambda result: _parts(result)[:-1],
    "parts turned round": lambda result: _parts(result)[::-1],
    "the first part last": lambda result: [*_parts(result)[1:], _parts(result)[0]],
    "the last two parts swapped": lambda result: [*_parts(result, 3)[:-2], *_parts(result)[:-3:-1]],
    "more beside it": lambda result: [_whole(result), Whatever()],
    "a list of rows": lambda result: list(_whole(result).unbind(0)),
    "the last two axes swapped": _each(lambda leaf: leaf.transpose(-1, -2)),
    "the first two axes swapped": _each(lambda leaf: leaf.transpose(0, 1)),
    "an axis of 1 in front": _each(lambda leaf: leaf.unsqueeze(0)),
    "an axis of 1 behind": _each(lambda leaf: leaf.unsqueeze(-1)),
    "an axis of 1 inside": _each(lambda leaf: leaf.unsqueeze(1)),
    "without axes of 1": _each(lambda leaf: leaf.squeeze()),
    "the first two axes as one": _each(lambda leaf: leaf.flatten(0, 1)),
    "the first of the first axis": _each(lambda leaf: leaf[0]),
    "the last of the first axis": _each(lambda leaf: leaf[-1]),
    "the last of the second axis": _each(lambda leaf: leaf[:, -1]),
    "the first part everywhere": lambda result: [_parts(result)[0]] * len(result),
    TIMES: lambda result: _parts(result, math.inf),
}
VALUES: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softmax": lambda leaf: leaf.softmax(-1),
    "logarithm": torch.log,
    "exponential": torch.exp,
    "negative": torch.neg,
    "absolute value": torch.abs,
    "square": torch.square,
    "running sum": lambda leaf: leaf.cumsum(0),
    "zeros": torch.zeros_like,
}


def changed_numbers(result: Tree, change: Callable[[Tensor], Tensor], *, first_part: bool = False) -> Tree:
    """The result with its floating numbers changed; of several parts the first alone, where that is asked."""
    if first_part:
        parts = _parts(result)
        return [changed_numbers(parts[0], change), *parts[1:]]
    return _each(lambda leaf: change(leaf) if leaf.is_floating_point() else leaf)(result)


for _name, _change in VALUES.items():
    FORMS[_name] = partial(changed_numbers, change=_change)
    FORMS[f"{_name} of the first part"] = partial(changed_numbers, change=_change, first_part=True)


def _parts(result: Tree, fewest: float = 2) -> list[Any]:
    if not isinstance(result, list | tuple) or len(result) < fewest:
        raise IndexError("a result of one part")
    return list(result)


def _whole(result: Tree) -> Tensor:
    if not isinstance(result, Tensor):
        raise IndexError("a result of several parts")
    return result
