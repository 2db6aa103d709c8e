"""Reference, calls and probes of `decoder-block`."""

from __future__ import annotations

from torch import Tensor

from regard.checking.trials import Case, Draw, Probe, Trial, changed, neighbour_probe
from regard.exercises.shared.attention import future
from regard.exercises.shared.blocks import (
    DROPOUT_PROBES,
    MODES,
    SIZES,
    Choices,
    Reference,
    block,
)


def reference(
    case: Case, *, norm: str = "before", gelu: str = "exact", activation: str = "gelu", **choices: str
) -> Tensor:
    """The block's output."""
    if activation == "gelu" and gelu == "tanh":
        activation = "gelu by tanh"
    c = Choices(norm=norm, activation=activation, **choices)
    return Reference(case, c, lambda scores: future(scores, True, c))(case.args[0])


def change_future(case: Case, draw: Draw) -> None:
    later = case.args[0][:, draw["position"] // 2 :]
    later += 1.0 + later.flip(-1)


TRIALS = (
    Trial("a batch", block, SIZES, variants=True),
    Trial("other sizes", block, {"batch": 5, "position": 3, "head": 2, "head_dim": 5, "ff_dim": 11}),
    Trial("as many sequences as heads", block, {**SIZES, "batch": 3}),
    Trial("as many positions as heads", block, {**SIZES, "position": 3}),
    Trial("batch of one", block, {**SIZES, "batch": 1}),
    Trial("one head", block, {**SIZES, "head": 1, "head_dim": 5}),
    Trial("one position", block, {**SIZES, "position": 1}),
    *MODES,
)

PROBES = (
    Probe(
        "the future has no say",
        changed(block, change_future),
        SIZES,
        says="later positions were changed: earlier ones may not move.",
    ),
    neighbour_probe(block, SIZES),
    *DROPOUT_PROBES,
)
