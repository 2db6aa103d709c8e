"""The forms in which a right result is returned wrongly: `form` is a choice that every exercise has.

An IndexError or RuntimeError says that a result cannot have the form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from regard.checking.child.messages import Tree, mapped

FORM = "form"  # the choice that every reference has, without knowing


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
}


def _parts(result: Tree, fewest: int = 2) -> list[Any]:
    if not isinstance(result, list | tuple) or len(result) < fewest:
        raise IndexError("a result of one part")
    return list(result)


def _whole(result: Tree) -> Tensor:
    if not isinstance(result, Tensor):
        raise IndexError("a result of several parts")
    return result
