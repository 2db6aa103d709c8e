"""Reference, calls and probes of `decoder-block`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from regard.checking.trials import Case, Draw, Probe, Trial
from regard.exercises.shared.attention import future
from regard.exercises.shared.blocks import (
    DROPOUT_PROBES,
    SIZES,
    Choices,
    Reference,
    block,
    inputs,
    neighbour_changed,
)


def reference(
    case: Case, *, norm: str = "before", gelu: str = "exact", activation: str = "gelu", **choices: str
) -> Tensor:
    """The block's output."""
    if activation == "gelu" and gelu == "tanh":
        activation = "gelu by tanh"
    c = Choices(norm=norm, activation=activation, **choices)
    return Reference(case, c, lambda scores: future(scores, True, c))(case.args[0])


def plain(draw: Draw, **kwargs: Any) -> Case:
    return block(draw, inputs(draw), **kwargs)


def train_without_dropout(draw: Draw) -> Case:
    return plain(draw, train=True)


def eval_with_dropout(draw: Draw) -> Case:
    return plain(draw, dropout=0.5)


def future_changed(draw: Draw) -> tuple[Case, ...]:
    base = plain(draw)
    x = base.args[0].clone()
    x[:, draw["position"] // 2 :] += 1.0 + x[:, draw["position"] // 2 :].flip(-1)
    return base, base.with_args(x)


TRIALS = (
    Trial("a batch", plain, SIZES, variants=True),
    Trial("other sizes", plain, {"batch": 5, "position": 3, "head": 2, "head_dim": 5, "ff_dim": 11}),
    Trial("as many sequences as heads", plain, {**SIZES, "batch": 3}),
    Trial("as many positions as heads", plain, {**SIZES, "position": 3}),
    Trial("batch of one", plain, {**SIZES, "batch": 1}),
    Trial("one head", plain, {**SIZES, "head": 1, "head_dim": 5}),
    Trial("one position", plain, {**SIZES, "position": 1}),
    Trial("train mode without dropout", train_without_dropout, SIZES, kind="train mode"),
    Trial("eval mode with dropout", eval_with_dropout, SIZES, kind="train mode"),
)

PROBES = (
    Probe(
        "the future has no say",
        future_changed,
        SIZES,
        says="later positions were changed: earlier ones may not move.",
    ),
    Probe(
        "a neighbour in the batch has no say",
        neighbour_changed(plain),
        SIZES,
        says="sequence 0 was changed: sequence 1 may not move.",
    ),
    *DROPOUT_PROBES,
)
