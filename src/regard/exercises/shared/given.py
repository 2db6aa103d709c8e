"""What exercises share that are given queries, keys and values of heads, or look at nothing later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from regard.checking.trials import Case, Draw, Probe, Trial, changed, neighbour_probe
from regard.exercises.shared.attention import Choices
from regard.exercises.shared.lengths import Make, edges, large_scores

SIZES = {"batch": 2, "head": 3, "position": 7, "head_dim": 5}


def heads(draw: Draw, *more: Any, scale: float = 1.5) -> Case:
    """A call with queries, keys, values (batch, head, position, head_dim) and what comes behind them."""
    shape = ("batch", "head", "position", "head_dim")
    q, k, v = draw.normal(*shape, scale=scale), draw.normal(*shape), draw.normal(*shape)
    return Case((q, k, v, *more))


def taken(c: Choices, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What is compared with what, and averaged."""
    by_name = {"queries": q, "keys": k, "values": v}
    return by_name[c.query_from], by_name[c.key_from], by_name[c.value_from]


def trials(make: Callable[..., Case], **sizes: int) -> tuple[Trial, ...]:
    """The calls of every such function; `make(draw, scale=...)` makes one."""
    usual = {**SIZES, **sizes}
    return (
        Trial("several heads", make, usual, variants=True),
        *edges(make, usual),
        Trial("all sizes alike", make, {**usual, **dict.fromkeys(SIZES, 3)}),
        large_scores(lambda draw: make(draw, scale=300.0), usual),
    )


def later_positions(case: Case, draw: Draw) -> None:
    """An edit: what stands in the second half of a sequence is changed."""
    for x in case.args:
        if isinstance(x, Tensor) and x.dim() > 2:
            x[..., x.shape[-2] // 2 + 1 :, :] += 2.0


def causal_probes(make: Make, sizes: dict[str, int]) -> tuple[Probe, ...]:
    """What may not move causal attention."""
    says = "later positions were changed: earlier ones may not move."
    future = Probe("the future has no say", changed(make, later_positions), sizes, says=says)
    return future, neighbour_probe(make, sizes)
