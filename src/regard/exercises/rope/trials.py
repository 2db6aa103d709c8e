"""Reference, calls and probes of `rope`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Probe, Trial, changed


def reference(
    case: Case,
    *,
    pairs: str = "neighbours",
    exponent: str = "2i / d",
    positions: str = "as given",
    partner: str = "rotated",
    angles_for: str = "these pairs",
    written: str = "as they were read",
) -> Tensor:
    """Every pair turned by its angle."""
    x, given = case.args
    n_row, width = x.shape[-2:]
    base = 10000.0 if exponent == "of 10000" else case.kwargs.get("base", 10000.0)
    pair = torch.arange(width // 2).to(x.dtype)
    powers = {
        "i / d": -pair / width,
        "4i / d": -4 * pair / width,
        "2(i + 1) / d": -2 * (pair + 1) / width,
        "without its minus": 2 * pair / width,
        "none": 0 * pair,
    }
    frequencies = base ** powers.get(exponent, -2 * pair / width)
    places = {
        "counted": torch.arange(n_row),
        "from the first": given - given[0],
        "one more": given + 1,
        "none": torch.ones_like(given),
    }
    place = places.get(positions, given).to(x.dtype)
    angles = place[:, None] * frequencies
    by_row = (pairs == "neighbours") == (angles_for == "these pairs")
    angles = angles.repeat_interleave(2, -1) if by_row else angles.repeat(1, 2)
    if exponent == "of the number":
        angles = place[:, None] * base ** (-torch.arange(width).to(x.dtype) / width)
    if positions == "along the heads":
        if x.shape[1] != n_row:
            raise ValueError("as many heads as positions")
        angles = angles[:, None]
    cos, sin = angles.cos(), angles.sin()

    def rotated(x: Tensor) -> Tensor:
        a, b = (x[..., 0::2], x[..., 1::2]) if pairs == "neighbours" else x.chunk(2, -1)
        new = (b, a) if partner == "without its minus" else (-b, a)
        return torch.stack(new, -1).flatten(-2) if pairs == "neighbours" else torch.cat(new, -1)

    if partner == "turned back":
        sin = -sin
    if partner == "swapped":
        cos, sin = sin, cos
    number = torch.arange(width)
    first = number % 2 == 0 if pairs == "neighbours" else number < width // 2
    if partner == "added":
        return torch.add(x, torch.where(first, sin, cos))
    if partner == "second turned":
        cos = torch.where(first, cos, -cos)
    out = torch.add(x * cos, (x if partner == "itself" else rotated(x)) * sin)
    if partner in ("the new first", "the new second"):
        out = torch.where(first == (partner == "the new first"), out, x * cos + rotated(out) * sin)
    if written == "as the other pairs":
        by_pair = out.unflatten(-1, (-1, 2) if pairs == "neighbours" else (2, -1))
        out = by_pair.transpose(-2, -1).reshape(x.shape)
    return out


def rows(draw: Draw, first: int = 0, **kwargs: Any) -> Case:
    x = draw.normal("batch", "head", "position", 2 * draw["pair"])
    return Case((x, torch.arange(first, first + draw["position"])), kwargs)


def later(draw: Draw) -> Case:
    return rows(draw, 211)


def shuffled(draw: Draw) -> Case:
    case = rows(draw)
    return case.with_args(case.args[0], draw.distinct(draw["position"], 40))


def another_base(draw: Draw) -> Case:
    return rows(draw, 3, base=500.0)


def shifted(draw: Draw) -> tuple[Case, ...]:
    """Queries and keys, and both again 9 positions later."""
    queries, keys = rows(draw), rows(draw)
    return queries, keys, *(case.with_args(case.args[0], case.args[1] + 9) for case in (queries, keys))


def by_distance(results: list[Any]) -> str | None:
    q, k, q_later, k_later = (result.double() for result in results)
    if torch.allclose(q @ k.transpose(-2, -1), q_later @ k_later.transpose(-2, -1), atol=1e-4):
        return None
    return "queries and keys were moved by 9 positions together: their products may not change."


SIZES = {"batch": 2, "head": 3, "position": 5, "pair": 3}

TRIALS = (
    Trial("positions from 0", rows, SIZES, variants=True),
    Trial("positions that begin later", later, {**SIZES, "position": 7, "pair": 5}, variants=True),
    Trial("positions in any order", shuffled, {**SIZES, "pair": 2}),
    Trial("another base", another_base, SIZES),
    Trial("one pair", rows, {**SIZES, "pair": 1}),
    Trial("batch of one", rows, {**SIZES, "batch": 1, "head": 2}),
    Trial("one head", rows, {**SIZES, "head": 1}),
    Trial("as many heads as positions", rows, {**SIZES, "head": 5}),
    Trial("one position", later, {**SIZES, "position": 1}),
)

PROBES = (
    Probe("products depend on the distance", shifted, SIZES, by_distance),
    Probe(
        "a position turns its row alone",
        changed(rows, lambda case, draw: case.args[1][-1].add_(5)),
        SIZES,
        says="the last position was changed: the other rows may not move.",
    ),
)
