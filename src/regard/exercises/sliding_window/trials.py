"""Reference, calls and probes of `sliding-window`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Trial
from regard.exercises.shared import attention, given
from regard.exercises.shared.attention import attended


@dataclass(frozen=True)
class Choices(attention.Choices):
    """Attention, and what the window shows."""

    band: str = "the window"


def visible(n: int, window: int, band: str) -> Tensor:
    """Who sees whom."""
    i, j = torch.arange(n)[:, None], torch.arange(n)
    past, near = j <= i, j > i - window
    return {
        "the window": past & near,
        "one more": past & (j >= i - window),
        "one less": past & (j > i - window + 1),
        "both sides": (i - j).abs() < window,
        "ahead": (i <= j) & (i > j - window),
        "causal": past,
        "no future": near,
        "blocks": past & (i // window == j // window),
        "not itself": (j < i) & near,
        "the first ones": past & (j < window),
        "wrapped": (i - j) % n < window,
        "centred": (i - j).abs() <= window // 2,
    }[band]


def reference(case: Case, **choices: str) -> Tensor:
    """Attention within the window."""
    c, (q, k, v, window) = Choices(**choices), case.args
    q, k, v = given.taken(c, q, k, v)
    if c.band == "cut after a causal softmax":
        causal, near = (visible(q.shape[2], window, band) for band in ("causal", "the window"))
        weights = attended(c, q, k, v, lambda scores: ~causal)[1]
        return torch.matmul(weights.masked_fill(~near, 0.0), v)
    if c.band in ("zeros in front", "the first in front"):
        n, ahead = q.shape[2], window - 1
        times = 0.0 if c.band == "zeros in front" else 1.0
        k, v = (torch.cat([times * x[:, :, :1].expand(-1, -1, ahead, -1), x], 2) for x in (k, v))
        near = visible(n + ahead, window, "the window")[ahead:]
        return attended(c, q, k, v, lambda scores: ~near)[0]
    return attended(c, q, k, v, lambda scores: ~visible(scores.shape[-1], window, c.band))[0]


def call(draw: Draw, scale: float = 1.5) -> Case:
    return given.heads(draw, draw["window"], scale=scale)


SIZES = {**given.SIZES, "window": 3}

TRIALS = (
    *given.trials(call, window=3),
    Trial("an even window", call, {**SIZES, "window": 4, "position": 11}, variants=True),
    Trial("a window of 1", call, {**SIZES, "window": 1}),
    Trial("a window as long as the sequence", call, {**SIZES, "window": 7}),
    Trial("a window longer than the sequence", call, {**SIZES, "window": 100}),
)

PROBES = given.causal_probes(call, SIZES)
