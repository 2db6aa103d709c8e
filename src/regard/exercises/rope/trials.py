"""Reference, calls and probes of `rope`."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Probe, Trial, changed, worked

FORMULAS = {
    "i": "joined((pair, pair))",  # the pair to which each number belongs
    "frequency": "base ** (-2 * i / d)",
    "positions": "given",
    "angle": "positions[..., None] * frequency",
    "cos": "split(angle.cos())",  # of the first number of each pair, and of the second
    "sin": "split(angle.sin())",
    "turned": "a * cos[0] - b * sin[0], a * sin[1] + b * cos[1]",
    "written": "joined(turned)",
}


def reference(case: Case, *, pairs: str = "neighbours", **choices: str) -> Tensor:
    """Every pair turned by its angle."""
    (x, given), base = case.args, case.kwargs.get("base", 10000.0)
    _, n_head, n, d = x.shape
    ways = (
        (lambda x: (x[..., 0::2], x[..., 1::2]), lambda parts: torch.stack(parts, -1).flatten(-2)),
        (lambda x: x.chunk(2, -1), lambda parts: torch.cat(parts, -1)),
    )
    (split, joined), (_, other) = ways if pairs == "neighbours" else ways[::-1]
    a, b = split(x)
    names = {"a": a, "b": b, "split": split, "joined": joined, "joined_otherwise": other, "given": given}
    pair = torch.arange(d // 2).to(x.dtype)
    turned: Tensor = worked(FORMULAS, choices, **names, pair=pair, base=base, n_head=n_head, n=n, d=d)
    return turned


def rows(draw: Draw, first: int = 0, **kwargs: Any) -> Case:
    x = draw.normal("batch", "head", "position", 2 * draw["pair"])
    return Case((x, torch.arange(first, first + draw["position"])), kwargs)


def shuffled(draw: Draw) -> Case:
    case = rows(draw)
    return case.with_args(case.args[0], draw.distinct(draw["position"], 40))


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
LATER = partial(rows, first=211)

TRIALS = (
    Trial("positions from 0", rows, SIZES, variants=True),
    Trial("positions that begin later", LATER, {**SIZES, "position": 7, "pair": 5}, variants=True),
    Trial("positions in any order", shuffled, {**SIZES, "pair": 2}),
    Trial("another base", partial(rows, first=3, base=500.0), SIZES),
    Trial("one pair", rows, {**SIZES, "pair": 1}),
    Trial("batch of one", rows, {**SIZES, "batch": 1, "head": 2}),
    Trial("one head", rows, {**SIZES, "head": 1}),
    Trial("as many heads as positions", rows, {**SIZES, "head": 5}),
    Trial("one position", LATER, {**SIZES, "position": 1}),
)

ALONE = "the last position was changed: the other rows may not move."
MOVED = changed(rows, lambda case, draw: case.args[1][-1].add_(5))

PROBES = (
    Probe("products depend on the distance", shifted, SIZES, by_distance),
    Probe("a position turns its row alone", MOVED, SIZES, says=ALONE),
)
