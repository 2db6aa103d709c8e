"""Reference, calls and probes of `sliding-window`."""

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Trial
from regard.exercises.shared import given
from regard.exercises.shared.attention import Choices, attended, computed

BAND = "(j <= i) & (j > i - window)"


def reference(case: Case, *, band: str = BAND, front: str = "", **choices: str) -> Tensor:
    """Attention within the window; `front` is what stands before the first position, where something does."""
    c, (q, k, v, window) = Choices(**choices), case.args
    q, k, v = given.taken(c, q, k, v)
    n, ahead = q.shape[2], window - 1 if front else 0
    if front:
        starts = (computed(front, first=x[:, :, :1]).expand(-1, -1, ahead, -1) for x in (k, v))
        k, v = (torch.cat([start, x], 2) for start, x in zip(starts, (k, v), strict=True))
    places = {"i": torch.arange(n)[:, None], "j": torch.arange(-ahead, n), "n": n, "window": window}
    visible, near = computed(band, **places), computed(BAND, **places)
    return attended(c, q, k, v, lambda scores: ~visible, near=near)[0]


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
