"""Says where two results differ, in the words of the exercise."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard.attention.shapes import named
from regard.checking.child.messages import NotData, Tree, leaves
from regard.checking.forms import Whatever

# Of the largest number expected, or of 1. float64 leaves room for a constant that was computed in float32.
# Half precision adds its rounding once an operation, over some ten of them.
TOLERANCE = {"float64": 1e-6, "float32": 2e-5, "float16": 1e-2, "bfloat16": 6e-2}
# Sums over a whole batch, and derivatives of quotients.
GRADIENT_TOLERANCE = 5.0

Words = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, eq=False)
class Difference:
    """Where an answer's result is not the expected one."""

    message: str
    numbers: tuple[Tensor, Tensor, Tensor] | None = None  # expected, the answer's, True where they differ
    words: tuple[str, ...] = ()


def difference(
    expected: Tree, got: Tree, tolerance: float, words: Words | None = None, dtype: str | None = None
) -> Difference | None:
    """None when `got` is `expected` in structure, shape, dtype and value; else the first difference."""
    wanted, returned = _structure(expected), _structure(got)
    if wanted != returned:
        return Difference(f"it must return {wanted}, and yours returns {returned}.")
    for (path, want), (_, have) in zip(leaves(expected), leaves(got), strict=True):
        wrong = _leaf(want, have, tolerance, (words or {}).get(path, ()), dtype)
        if wrong is not None:
            return replace(wrong, message=f"{_part(expected, path)}{wrong.message}")
    return None


def _part(tree: Tree, path: str) -> str:
    """Which of several results a path means.

    >>> _part((1, 2), "1"), _part({"h": 1, "c": 2}, "c")
    ('result 2 of 2: ', "result 'c': ")
    """
    if not path:
        return ""
    first, _, rest = path.partition(".")
    which = repr(first) if isinstance(tree, dict) else f"{int(first) + 1} of {len(tree)}"
    return f"result {which}, {rest}: " if rest else f"result {which}: "


def same(first: Tree, second: Tree, tolerance: float) -> bool:
    """Whether two answers gave the same: also in their mistakes."""
    return bool(equal_rows(first, second, tolerance).all())


def equal_rows(first: Tree, second: Tree, tolerance: float) -> Tensor:
    """For each row of `first` (a tensor's last axis, or one number), whether `second` has the same there.

    All are False where the two have not one form; what `second` leaves open, as `Whatever`, is equal.

    >>> equal_rows(torch.eye(2), torch.zeros(2, 2), 1e-3).tolist()
    [False, False]
    """
    rows = list(_rows(first, second, tolerance))
    return torch.cat(rows) if rows else torch.tensor([_structure(first) == _structure(second)])


def _rows(first: Tree, second: Tree, tolerance: float) -> Iterator[Tensor]:
    kinds = (list, tuple, dict)
    if isinstance(first, kinds):
        a, b = (list(tree.values()) if isinstance(tree, dict) else tree for tree in (first, second))
        alike = isinstance(b, list | tuple) and isinstance(first, dict) == isinstance(second, dict)
        if not alike or len(a) != len(b):
            b = [second if isinstance(second, Whatever) else ()] * len(a)  # nothing is equal to ()
        for one, other in zip(a, b, strict=True):
            yield from _rows(one, other, tolerance)
    elif isinstance(second, Whatever):
        yield torch.ones(n_row(first), dtype=torch.bool)
    elif isinstance(first, Tensor) and isinstance(second, Tensor) and first.shape == second.shape:
        same_kind = _number_kind(first) == _number_kind(second)
        equal = ~moved(second, first, tolerance) & same_kind
        yield equal.all(-1).reshape(-1) if first.dim() else equal.reshape(1)
    elif isinstance(second, kinds) or any(isinstance(x, Tensor) and x.numel() != 1 for x in (first, second)):
        yield torch.zeros(n_row(first), dtype=torch.bool)
    else:
        yield torch.tensor([_leaf(second, first, tolerance, (), None) is None])


def apart(first: Tree, second: Tree) -> float:
    """The mean distance of the numbers of two results of one form; infinite where they have not one."""
    total = count = 0.0
    for (_, a), (_, b) in zip(leaves(first), leaves(second), strict=False):
        if not isinstance(a, Tensor) or not isinstance(b, Tensor) or a.shape != b.shape:
            return math.inf
        total += float((a.double() - b.double()).abs().nan_to_num(0.0, 1e3).sum())
        count += a.numel()
    return total / max(1.0, count)


def off(want: Tree, have: Tree) -> float:
    """Return the largest difference of two results, as a part of the largest number wanted, or of 1.

    It is infinite where they differ by more than rounding can explain: in structure, in shape, in whole
    numbers, or where only one is finite. Where infinity is wanted, anything is right.

    >>> off(torch.tensor([1.0, 50.0]), torch.tensor([1.5, 50.0]))
    0.01
    """
    if _structure(want) != _structure(have):
        return math.inf
    pairs = zip(leaves(want), leaves(have), strict=True)
    return max((_leaf_off(one, other) for (_, one), (_, other) in pairs), default=0.0)


def _leaf_off(want: Any, have: Any) -> float:
    numbers = (bool, int, float, Tensor)
    if not isinstance(want, numbers) or not isinstance(have, numbers):
        return 0.0 if want == have else math.inf
    a, b = (
        torch.tensor(item, dtype=torch.float64) if isinstance(item, float) else torch.as_tensor(item)
        for item in (want, have)
    )
    floating = a.is_floating_point()
    if a.shape != b.shape or _number_kind(a) != _number_kind(b):
        return math.inf
    a, b = a.double(), b.double()
    same = (a == b) | (a.isnan() & b.isnan()) | (a == math.inf)
    if bool(same.all()):
        return 0.0
    if not floating or not bool((same | (a - b).isfinite()).all()):
        return math.inf
    scale = float(a[a.isfinite()].abs().max().clamp(min=1.0))
    return float((a - b)[~same].abs().max()) / scale


def n_row(leaf: Any) -> int:
    """How many rows a leaf of a result has."""
    return math.prod(leaf.shape[:-1]) if isinstance(leaf, Tensor) else 1


def moved(first: Tensor, second: Tensor, tolerance: float) -> Tensor:
    """True where the two, of one shape, differ by more than the tolerance; NaN equals NaN."""
    if not first.is_floating_point() and not second.is_floating_point():
        return first != second
    a, b = first.double(), second.double()
    finite = a[torch.isfinite(a)].abs()
    scale = max(1.0, float(finite.max()) if finite.numel() else 1.0)
    near = (a - b).abs() <= tolerance * scale
    return ~(near | (a == b) | (a.isnan() & b.isnan()))


def _leaf(
    want: Any, have: Any, tolerance: float, words: tuple[str, ...], dtype: str | None
) -> Difference | None:
    if isinstance(have, NotData):
        return Difference(f"it must return {_structure(want)}, and yours returns {have.what}.")
    if isinstance(want, Tensor) and isinstance(have, Tensor):
        return _tensors(want, have, tolerance, words, dtype)
    if isinstance(have, Tensor) and have.numel() == 1:
        have = have.item()
    number = type(want) in (int, float) or (isinstance(want, Tensor) and want.dim() == 0)
    if number and isinstance(have, int | float):
        want, have = (torch.as_tensor(value, dtype=torch.float64) for value in (want, have))
        return _tensors(want, have, tolerance, (), None)
    return None if want == have else Difference(f"expected {want!r}, yours is {have!r}.")


def _tensors(
    want: Tensor, have: Tensor, tolerance: float, words: tuple[str, ...], dtype: str | None
) -> Difference | None:
    if want.shape != have.shape:
        return Difference(f"the shape must be {named(words, want.shape)}, and yours is {tuple(have.shape)}.")
    if _number_kind(want) != _number_kind(have):
        return Difference(f"the result must be {_number_kind(want)}, and yours is {have.dtype}.")
    if dtype is not None and want.is_floating_point() and str(have.dtype) != f"torch.{dtype}":
        return Difference(f"the inputs are torch.{dtype}, so must the result be; yours is {have.dtype}.")
    wrong = moved(want, have, tolerance) & ~(want == math.inf)
    if not bool(wrong.any()):
        return None
    first = wrong.nonzero()[0].tolist()
    at = f"at {named(words, first)}: " if first else ""
    values = "expected {}, yours is {}".format(*_shown(want[tuple(first)].item(), have[tuple(first)].item()))
    share = "" if wrong.numel() == 1 else f" ({int(wrong.sum())} of {wrong.numel()} numbers differ)"
    return Difference(f"{at}{values}{share}.", (want, have, wrong), words)


def _shown(want: object, have: object) -> tuple[str, str]:
    """Both numbers, with as many digits as tell them apart.

    >>> _shown(-1.1328561, -1.1328602)
    ('-1.1328561', '-1.1328602')
    """
    for digits in (5, 8, 12, 17):
        texts = [f"{value:.{digits}g}" if isinstance(value, float) else str(value) for value in (want, have)]
        if texts[0] != texts[1]:
            break
    return texts[0], texts[1]


def _number_kind(tensor: Tensor) -> str:
    if tensor.dtype == torch.bool:
        return "boolean"
    return "floating" if tensor.is_floating_point() else "whole numbers"


def _structure(tree: Tree) -> str:
    """The form of a result in words, where a list and a tuple are alike, and so are a number and a scalar."""
    if isinstance(tree, list | tuple):
        return "(" + ", ".join(_structure(item) for item in tree) + ("," if len(tree) == 1 else "") + ")"
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{key!r}: {_structure(item)}" for key, item in tree.items()) + "}"
    if tree is None:
        return "None"
    if isinstance(tree, int | float) or (isinstance(tree, Tensor) and tree.dim() == 0):
        return "a number"
    if isinstance(tree, Tensor):
        return "a tensor"
    return tree.what if isinstance(tree, NotData) else f"a {type(tree).__name__}"
