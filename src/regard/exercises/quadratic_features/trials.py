"""Reference, calls and probes of `quadratic-features`."""

from __future__ import annotations

from torch import Tensor

from regard.attention.feature_maps import Quadratic
from regard.checking.trials import Case, Draw, Probe, Trial


def reference(case: Case) -> Tensor:
    """Products of our own features."""
    q, k = case.args
    phi = Quadratic(1.0).phi
    if q.dim() == 1:
        return (phi(q[None]) @ phi(k[None]).mT)[0, 0]
    return phi(q) @ phi(k).mT


def pairs(draw: Draw) -> Case:
    return Case((draw.normal("n", "d"), draw.normal("m", "d")))


def batched(draw: Draw) -> Case:
    return Case((draw.normal("batch", "head", "n", "d"), draw.normal("batch", "head", "m", "d")))


def single(draw: Draw) -> Case:
    return Case((draw.normal("d"), draw.normal("d")))


def row_changed(draw: Draw) -> tuple[Case, ...]:
    base = pairs(draw)
    q = base.args[0].clone()
    q[0] += 1.5
    return base, base.with_args(q, base.args[1])


TRIALS = (
    Trial("queries and keys", pairs, {"n": 5, "m": 7, "d": 3}, variants=True),
    Trial("more axes", batched, {"batch": 2, "head": 3, "n": 5, "m": 7, "d": 2}, variants=True),
    Trial("two single vectors", single, {"d": 5}),
    Trial("one dimension", pairs, {"n": 3, "m": 2, "d": 1}),
    Trial("many dimensions", pairs, {"n": 2, "m": 3, "d": 11}),
    Trial("as many vectors as dimensions", pairs, {"n": 5, "m": 5, "d": 5}),
)

PROBES = (
    Probe(
        "a vector stands alone",
        row_changed,
        {"n": 5, "m": 7, "d": 3},
        says="one query was changed: the products of the others may not move.",
    ),
)
