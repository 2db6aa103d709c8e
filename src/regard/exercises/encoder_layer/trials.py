"""Reference, calls and probes of `encoder-layer`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Probe, Trial
from regard.exercises.shared.attention import past_lengths
from regard.exercises.shared.blocks import (
    DROPOUT_PROBES,
    SIZES,
    Choices,
    Reference,
    block,
    inputs,
    neighbour_changed,
)


def reference(case: Case, *, norm: str = "after", activation: str = "relu", **choices: str) -> Tensor:
    """The layer's output."""
    c = Choices(norm=norm, activation=activation, **choices)
    lengths = case.kwargs.get("valid_lens")
    out = Reference(case, c, lambda scores: past_lengths(lengths, scores, c))(case.args[0])
    if c.padding == "zeroed" and lengths is not None:
        out = out * (torch.arange(out.shape[1]) < lengths[:, None])[..., None]
    return out


def unpadded(draw: Draw, **kwargs: Any) -> Case:
    return block(draw, inputs(draw), **kwargs)


def padded(draw: Draw) -> Case:
    lens = draw.integers(1, draw["position"], "batch")
    if draw["batch"] > 1:
        lens[0], lens[1] = max(1, draw["position"] // 2), draw["position"]
    else:
        lens[0] = max(1, draw["position"] - 2)
    return block(draw, inputs(draw), valid_lens=lens)


def train_without_dropout(draw: Draw) -> Case:
    return unpadded(draw, train=True)


def eval_with_dropout(draw: Draw) -> Case:
    return unpadded(draw, dropout=0.5)


def padding_changed(draw: Draw) -> tuple[Case, ...]:
    base = padded(draw)
    x = base.args[0]
    beyond = torch.arange(draw["position"])[None, :, None] >= base.kwargs["valid_lens"][:, None, None]
    return base, base.with_args(torch.where(beyond, x.flip(-1) + 1.0, x))


TRIALS = (
    Trial("no padding", unpadded, SIZES, variants=True),
    Trial("padding", padded, SIZES, variants=True),
    Trial("as many sequences as heads", padded, {**SIZES, "batch": 3}),
    Trial("batch of one", padded, {**SIZES, "batch": 1}),
    Trial("one head", padded, {**SIZES, "head": 1, "head_dim": 5}),
    Trial("one position", unpadded, {**SIZES, "position": 1}),
    Trial("as wide inside as outside", unpadded, {**SIZES, "head": 2, "head_dim": 3, "ff_dim": 6}),
    Trial("train mode without dropout", train_without_dropout, SIZES, kind="train mode"),
    Trial("eval mode with dropout", eval_with_dropout, SIZES, kind="train mode"),
)

PROBES = (
    Probe(
        "padding has no say",
        padding_changed,
        SIZES,
        says="positions past a sequence's length were changed: the others may not move.",
    ),
    Probe(
        "a neighbour in the batch has no say",
        neighbour_changed(padded),
        SIZES,
        says="sequence 0 was changed: sequence 1 may not move.",
    ),
    *DROPOUT_PROBES,
)
