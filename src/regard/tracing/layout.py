"""Which of the leading dimensions of weights are sequences and which are heads.

(batch, head), (batch * head), (head * batch), (batch, window, head) and others look the same where numbers
are equal. What a model means is found by experiment: one sequence of its input is changed, and the weights
that move are those of that sequence; then one position of it, which moves all heads, and windows only where
it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.errors import ShapeError

Sizes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """How leading dimensions become batch and heads.

    Attributes:
        parts: For each leading dimension the sizes it is made of, outermost first.
        heads: Which of all those parts are heads, by their number; the others are sequences.
        sure: Whether this was measured, or can only be so; else it is what is usual.
    """

    parts: tuple[Sizes, ...]
    heads: tuple[int, ...]
    sure: bool = False

    def four(self, tensor: Tensor, lead: Sequence[int] | None = None) -> Tensor:
        """Return (*lead, a, b) as (batch, head, a, b)."""
        if lead is not None:
            tensor = tensor.expand(*lead, *tensor.shape[-2:])
        sizes = [size for part in self.parts for size in part]
        if tuple(tensor.shape[:-2]) != tuple(math.prod(part) for part in self.parts):
            raise ShapeError(f"leading dimensions {tuple(tensor.shape[:-2])} are not those of {self}.")
        a, b = tensor.shape[-2:]
        tensor = tensor.reshape(*sizes, a, b)
        batch = [at for at in range(len(sizes)) if at not in self.heads]
        order = [*batch, *self.heads, len(sizes), len(sizes) + 1]
        n_batch, n_head = (math.prod(sizes[at] for at in some) for some in (batch, self.heads))
        return tensor.permute(order).reshape(n_batch, n_head, a, b)


def usual(lead: Sizes, batch: int | None, n_head: int | None, *, certain: bool = False) -> Layout:
    """Return the layout that is usual for these leading dimensions.

    Args:
        lead: Their sizes.
        batch: Sequences that the model was given, if known.
        n_head: Heads that the module says it has, if it does.
        certain: Whether the model is known to keep to what is usual.
    """
    one = all(size == 1 for size in lead)
    if not lead:
        return Layout((), (), True)
    if len(lead) == 1:  # batch and heads together, the heads of a sequence side by side
        if batch and lead[0] % batch == 0:
            inner = lead[0] // batch
        else:
            inner = n_head if n_head and lead[0] % n_head == 0 else 1
        sure = one or (certain and (inner == n_head or batch == 1 or inner == 1))
        return Layout(((lead[0] // inner, inner),), (1,), sure)
    parts = tuple((size,) for size in lead)
    if math.prod(lead[1:]) != n_head and n_head in lead[1:]:
        return Layout(parts, (lead.index(n_head, 1),), one or certain)
    return Layout(parts, tuple(range(1, len(lead))), one or certain)


Seen = dict[str, Tensor]  # the weights of each layer, (*lead, query, key)


def measured(
    run: Callable[[tuple[Any, ...], Mapping[str, Any]], Seen],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    n_head: Mapping[str, int | None],
) -> dict[str, Layout]:
    """Return the layouts of layers, by their names, as far as runs of the model on changed inputs show them.

    Args:
        run: Calls the model and gives the weights of its layers as they meet values.
        args: What the model is called with.
        kwargs: And by name.
        n_head: How many heads each layer's module says it has.
    """
    before = run(args, kwargs)
    inputs = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor) and value.dim()]
    data = next((value for value in inputs if value.dim() > 1 and value.dtype != torch.bool), None)
    if data is None:
        return {}
    sequence: tuple[int, dict[str, Tensor]] | None = None
    for dim in range(min(2, data.dim() - (1 if data.is_floating_point() else 0))):
        if data.shape[dim] < 2:
            continue
        moved = _moved(before, run(*_changed(args, kwargs, data, dim, data.shape[dim] - 1)))
        some = [name for name, lead in moved.items() if bool(lead.any()) and not bool(lead.all())]
        if some:
            sequence = dim, moved
            break
    # One position: of the last sequence, where there are several.
    of_batch = None if sequence is None else sequence[0]
    place: int | None = None
    if data.dim() > (2 if data.is_floating_point() else 1):
        place = 1 if of_batch == 0 or (of_batch is None and data.shape[0] == 1) else 0
    local: dict[str, Tensor] = {}
    if place is not None and data.shape[place] > 1:
        last = data.shape[of_batch or 0] - 1
        local = _moved(before, run(*_changed(args, kwargs, data, of_batch, last, place)))
    layouts = {}
    for name, weights in before.items():
        lead = tuple(weights.shape[:-2])
        n_batch = 1 if of_batch is None else data.shape[of_batch]
        of_sequence = None if sequence is None else sequence[1].get(name)
        layout = _layout(lead, n_batch, of_sequence, local.get(name), n_head.get(name))
        if layout is not None:
            layouts[name] = layout
    return layouts


def _layout(
    lead: Sizes, n_batch: int, moved: Tensor | None, local: Tensor | None, n_head: int | None
) -> Layout | None:
    """The layout of one layer, by which of its leading places move; None where they do not tell."""
    parts: list[Sizes] = [(size,) for size in lead]
    batch: set[tuple[int, int]] = set()  # (dimension, part of it)
    if n_batch > 1:
        if moved is None or not bool(moved.any()) or bool(moved.all()):
            return None
        held = [at for at in range(len(lead)) if not bool(_along(moved, at).all())]
        if len(held) != 1 or lead[held[0]] % n_batch:
            return None
        (at,) = held
        size, places = lead[at], _along(moved, at).nonzero().flatten().tolist()
        inner = size // n_batch
        if places == list(range(size - inner, size)):
            parts[at], outer = (n_batch, inner), 0
        elif places == list(range(n_batch - 1, size, n_batch)):
            parts[at], outer = (inner, n_batch), 1
        else:
            return None
        batch.add((at, outer))
    # Of what is left, parts that one position moves everywhere are heads.
    split = [(at, part) for at, sizes in enumerate(parts) for part in range(len(sizes))]
    rest = [(at, part) for at, part in split if (at, part) not in batch and parts[at][part] > 1]
    heads = []
    for at, part in rest:
        if len(rest) == 1 and parts[at][part] == n_head:
            heads.append((at, part))
            continue
        if local is None or not bool(local.any()):
            if len(rest) > 1:
                return None
            heads.append((at, part))
            continue
        sizes = [size for one in parts for size in one]
        seen = local.reshape(sizes)
        for other, (dim, which) in enumerate(split):  # the sequence that was changed
            if (dim, which) in batch:
                seen = seen.narrow(other, sizes[other] - 1, 1)
        if bool(_along(seen, split.index((at, part))).all()):
            heads.append((at, part))
    sizes_of_heads = [parts[at][part] for at, part in heads]
    if len(heads) > 1 and n_head in sizes_of_heads and math.prod(sizes_of_heads) != n_head:
        heads = [heads[sizes_of_heads.index(n_head)]]
    return Layout(tuple(parts), tuple(split.index(one) for one in heads), True)


def _along(moved: Tensor, dim: int) -> Tensor:
    """Whether anything moved, for each place of one dimension."""
    others = [at for at in range(moved.dim()) if at != dim]
    return moved.any(others) if others else moved


def _moved(before: Seen, after: Seen) -> dict[str, Tensor]:
    """Which leading places of each layer have other weights."""
    return {
        name: ((weights - after[name]).abs().amax((-2, -1)) > 1e-7).cpu()
        for name, weights in before.items()
        if name in after and after[name].shape == weights.shape
    }


def _changed(
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    data: Tensor,
    dim: int | None,
    index: int,
    place: int | None = None,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with one sequence changed, or one `place` of it."""
    n = None if dim is None else data.shape[dim]

    def new(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dtype == torch.bool or value.dim() < 2:
            return value
        if dim is not None and (value.dim() <= dim or value.shape[dim] != n):
            return value
        if not value.is_floating_point() and value is not data:
            return value
        if value.is_floating_point() and bool(((value == 0) | (value == 1) | value.isinf()).all()):
            return value  # a mask
        if place is not None and value is not data:
            return value
        changed = value.clone()
        part = changed if dim is None else changed.select(dim, index)
        if place is not None:
            at = place if dim is None else (place if place < dim else place - 1)
            part = part.select(at, 0)
        if value.is_floating_point():
            part.copy_(part * 1.31 + 0.37 * part.flip(-1) + 0.11)
        else:  # another token that there is
            other = value.flatten()
            part.copy_(torch.where(part == other.min(), other.max(), other.min()))
        return changed

    return tuple(map(new, args)), {name: new(value) for name, value in kwargs.items()}
