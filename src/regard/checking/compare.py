"""Says where two results differ, in the words of the exercise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.attention.shapes import named
from regard.checking.child.messages import Foreign, Meta, Tree, leaves
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
    expected: Tensor | None = None
    got: Tensor | None = None
    wrong: Tensor | None = None  # True where they differ
    words: tuple[str, ...] = ()


def tolerance_of(dtype: str, factor: float = 1.0) -> float:
    """How far numbers of this dtype may lie from the reference's."""
    return TOLERANCE[dtype] * factor


def difference(
    expected: Tree, got: Tree, tolerance: float, words: Words | None = None, dtype: str | None = None
) -> Difference | None:
    """None when `got` is `expected` in structure, shape, dtype and value; else the first difference."""
    words = words or {}
    wanted, given = _structure(expected), _structure(got)
    if wanted != given:
        return Difference(f"it must return {wanted}, and yours returns {given}.")
    for (path, want), (_, have) in zip(leaves(expected), leaves(got), strict=True):
        names = words.get(path, ())
        wrong = _leaf(want, have, tolerance, names, dtype)
        if wrong is not None:
            prefix = f"{_part(expected, path)}: " if path else ""
            return Difference(prefix + wrong.message, wrong.expected, wrong.got, wrong.wrong, names)
    return None


def _part(tree: Tree, path: str) -> str:
    """Which of several results a path means.

    >>> _part((1, 2), "1"), _part({"h": 1, "c": 2}, "c")
    ('result 2 of 2', "result 'c'")
    """
    first, _, rest = path.partition(".")
    inner = f", {rest}" if rest else ""
    return (
        f"result {first!r}{inner}"
        if isinstance(tree, dict)
        else f"result {int(first) + 1} of {len(tree)}{inner}"
    )


def same(first: Tree, second: Tree, tolerance: float) -> bool:
    """Whether two answers gave the same: also in their mistakes."""
    return bool(equal_rows(first, second, tolerance).all())


def equal_rows(first: Tree, second: Tree, tolerance: float) -> Tensor:
    """For each row of `first` (a tensor's last axis, or one number), whether `second` has the same there.

    All are False where the two have not one form; what `second` leaves open, as `Whatever`, is equal.

    >>> equal_rows(torch.eye(2), torch.zeros(2, 2), 1e-3).tolist()
    [False, False]
    """
    rows: list[Tensor] = []
    _add_rows(rows, first, second, tolerance)
    return torch.cat(rows) if rows else torch.tensor([_structure(first) == _structure(second)])


def _add_rows(rows: list[Tensor], first: Tree, second: Tree, tolerance: float) -> None:
    if isinstance(second, Whatever):
        rows += [torch.ones(n_row(leaf), dtype=torch.bool) for _, leaf in leaves(first)]
    elif isinstance(first, list | tuple | dict):
        a, b = (list(tree.values()) if isinstance(tree, dict) else tree for tree in (first, second))
        if (
            isinstance(b, list | tuple)
            and len(a) == len(b)
            and isinstance(first, dict) == isinstance(second, dict)
        ):
            for one, other in zip(a, b, strict=True):
                _add_rows(rows, one, other, tolerance)
        else:
            rows += [torch.zeros(n_row(leaf), dtype=torch.bool) for _, leaf in leaves(first)]
    elif isinstance(first, Tensor) and isinstance(second, Tensor) and first.shape == second.shape:
        if _number_kind(first) == _number_kind(second):
            equal = ~moved(second, first, tolerance)
            rows.append(equal.all(-1).reshape(-1) if first.dim() else equal.reshape(1))
        else:
            rows.append(torch.zeros(n_row(first), dtype=torch.bool))
    elif not any(isinstance(leaf, list | tuple | dict) or _several(leaf) for leaf in (first, second)):
        rows.append(torch.tensor([_leaf(second, first, tolerance, (), None) is None]))
    else:
        rows.append(torch.zeros(n_row(first), dtype=torch.bool))


def apart(first: Tree, second: Tree) -> float:
    """The mean distance of the numbers of two results of one form; infinite where they have not one."""
    pairs = list(zip(leaves(first), leaves(second), strict=False))
    total = count = 0.0
    for (_, a), (_, b) in pairs:
        if not isinstance(a, Tensor) or not isinstance(b, Tensor) or a.shape != b.shape:
            return math.inf
        total += float((a.double() - b.double()).abs().nan_to_num(0.0, 1e3).sum())
        count += a.numel()
    return total / max(1.0, count)


def _several(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.numel() != 1


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
    if isinstance(have, Foreign):
        return Difference(f"it must return {_kind(want)}, and yours returns {have.what}.")
    if isinstance(want, Tensor) and isinstance(have, Tensor):
        return _tensors(want, have, tolerance, words, dtype)
    if isinstance(want, Tensor) and want.dim() == 0 and isinstance(have, int | float):
        return _tensors(want.double(), torch.tensor(float(have), dtype=torch.float64), tolerance, (), None)
    if isinstance(want, int | float) and isinstance(have, Tensor) and have.numel() == 1:
        have = have.item()
    if isinstance(want, bool) or not isinstance(want, int | float) or not isinstance(have, int | float):
        return None if want == have else Difference(f"expected {want!r}, yours is {have!r}.")
    close = math.isclose(want, have, rel_tol=tolerance, abs_tol=tolerance) or (want != want and have != have)
    if close or want == math.inf:
        return None
    return Difference("expected {}, yours is {}.".format(*_shown(want, have)))


def _tensors(
    want: Tensor, have: Tensor, tolerance: float, words: tuple[str, ...], dtype: str | None
) -> Difference | None:
    if want.shape != have.shape:
        return Difference(
            f"the shape must be {named(words, want.shape)}, and yours is {tuple(have.shape)}.", want, have
        )
    kinds = [_number_kind(tensor) for tensor in (want, have)]
    if kinds[0] != kinds[1]:
        return Difference(f"the result must be {kinds[0]}, and yours is {have.dtype}.", want, have)
    if dtype is not None and want.is_floating_point() and str(have.dtype) != f"torch.{dtype}":
        return Difference(
            f"the inputs are torch.{dtype}, so must the result be; yours is {have.dtype}.", want, have
        )
    wrong = moved(want, have, tolerance) & ~(want == math.inf)
    if not bool(wrong.any()):
        return None
    first = wrong.nonzero()[0].tolist()
    at = f"at {named(words, first)}: " if first else ""
    values = "expected {}, yours is {}".format(*_shown(want[tuple(first)].item(), have[tuple(first)].item()))
    share = "" if wrong.numel() == 1 else f" ({int(wrong.sum())} of {wrong.numel()} numbers differ)"
    return Difference(f"{at}{values}{share}.", want, have, wrong, words)


def _shown(want: float, have: float) -> tuple[str, str]:
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


def _kind(value: Any) -> str:
    if isinstance(value, Foreign):
        return value.what
    if isinstance(value, Tensor | Meta):
        return "a tensor"
    if value is None:
        return "nothing"
    return "a number" if isinstance(value, int | float) else f"a {type(value).__name__}"


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
    return _kind(tree)
