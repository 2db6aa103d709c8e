"""Nests of lists, tuples and dicts, leaf by leaf."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor


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


def weighted_sum(tree: Any) -> Tensor | None:
    """The sum of all numbers of a result, each times one drawn at random; None where none has a gradient.

    The checker differentiates it, and so does the process that runs answers: both draw the same numbers.
    """
    generator = torch.Generator().manual_seed(17)
    terms = []
    for _, leaf in leaves(tree):
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            factor = torch.randn(leaf.shape, generator=generator).to(leaf.dtype)
            terms += [(leaf * factor).sum()] if leaf.requires_grad else []
    return sum(terms[1:], start=terms[0]) if terms else None
