"""Reference, calls and probes of `relative-bias`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Probe, Trial, changed, first_sequence
from regard.exercises.shared import attention, given
from regard.exercises.shared.attention import attended


@dataclass(frozen=True)
class Choices(attention.Choices):
    """Attention, and which bias is added where."""

    distance: str = "from query to key"
    bias: str = "added"
    heads: str = "of each head"


def reference(case: Case, **choices: str) -> Tensor:
    """Attention with the bias of each distance."""
    c, (q, k, v, table) = Choices(**choices), case.args
    q, k, v = given.taken(c, q, k, v)
    n, far = q.shape[2], table.shape[1] // 2
    i, j = torch.arange(n)[:, None], torch.arange(n)
    distance = {"turned round": i - j, "of either direction": (j - i).abs(), "of the key": j - 0 * i}
    between = distance.get(c.distance, j - i)
    shift = {"one off": 1, "one more": 1, "one less": -1, "without r": -far, "without r, from 0": -far}
    column = between.clamp(-far, far) + far + shift.get(c.distance, 0)  # below 0 counts from the end
    if c.distance in ("one off", "without r, from 0"):
        column = column.clamp(0, 2 * far)
    if c.distance == "wrapped":
        column = (between + far) % (2 * far + 1)
    rows = {"the first row": table[:1], "the mean row": table.mean(0, keepdim=True)}.get(c.heads, table)
    bias = rows[:, column]
    if c.heads == "on the batch":
        bias = bias[:, None]
    if c.distance == "hidden":
        bias = bias.masked_fill(between.abs() > far, -torch.inf)
    if c.distance == "without a bias":
        bias = bias.masked_fill(between.abs() > far, 0.0)

    def moved(scores: Tensor, scale: float) -> Tensor:
        nothing = torch.zeros(())
        parts = {"before the scale": bias / scale, "after the softmax": nothing, "none": nothing}
        divided = scores / scale
        return torch.mul(divided, bias) if c.bias == "multiplied" else divided + parts.get(c.bias, bias)

    out = attended(c, q, k, v, lambda scores: None, moved=moved)[0]
    return torch.add(out, bias @ v) if c.bias == "after the softmax" else out


def call(draw: Draw, scale: float = 1.5) -> Case:
    return given.heads(draw, draw.normal("head", 2 * draw["far"] + 1, scale=1.5), scale=scale)


SIZES = {**given.SIZES, "far": 2}

TRIALS = (
    *given.trials(call, far=2),
    Trial("no distance is clipped", call, {**SIZES, "far": 6}, variants=True),
    Trial("the table is longer than needed", call, {**SIZES, "far": 11}),
    Trial("one distance to each side", call, {**SIZES, "far": 1}),
    Trial("as many columns as positions", call, {**SIZES, "far": 3}),
    Trial("a single column", call, {**SIZES, "far": 0}),
)

PROBES = (
    Probe(
        "a neighbour has no say",
        changed(lambda draw: given.heads(draw, torch.ones(draw["head"], 3)), first_sequence),
        {**given.SIZES, "batch": 3},
        says="sequence 0 was changed: the others may not move.",
    ),
    Probe(
        "the farthest column counts for all beyond it",
        changed(call, lambda case, draw: case.args[3][:, 0].add_(2.0)),
        SIZES,
        says="the first column was changed: rows with a key that far before them must move, and no others.",
    ),
)
