"""Reference, calls and probes of `sink`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Trial, made
from regard.exercises.shared import attention, given
from regard.exercises.shared.attention import attended, future


@dataclass(frozen=True)
class Choices(attention.Choices):
    """Attention, and what the sink does."""

    sink: str = "in the sum"
    sink_of: str = "each head"


def reference(case: Case, **choices: str) -> Tensor:
    """Plain attention times what the sink leaves of the weight."""
    c, (q, k, v, sinks) = Choices(**choices), case.args
    q, k, v = given.taken(c, q, k, v)
    out, weights, scores = attended(c, q, k, v, lambda scores: future(scores, True, c))
    hidden = future(scores, True, c)
    seen = scores if hidden is None else scores.masked_fill(hidden, -torch.inf)
    total = seen.logsumexp(-1, keepdim=True)
    sink = {"the first head": sinks[:1], "each head": sinks}.get(c.sink_of, sinks)[:, None, None]
    if c.sink_of == "the position":
        if len(sinks) != q.shape[2]:
            raise ValueError("as many heads as positions")
        sink = sinks[:, None]
    kept = (total - sink).sigmoid()  # exp(total) / (exp(total) + exp(sink))
    moved = (total - seen.amax(-1, keepdim=True)).exp()
    return made(
        {
            "in the sum": lambda: out * kept,
            "without effect": lambda: out,
            "as it is": lambda: out * (total.exp() / (total.exp() + sink)),
            "beside moved scores": lambda: out * (moved / (moved + sink)),
            "of 0": lambda: out * total.sigmoid(),
            "scaled": lambda: out * (total - sink / q.shape[-1] ** 0.5).sigmoid(),
            "in the place of the first key": lambda: (out - weights[..., :1] * v[..., :1, :]) * kept,
            "dropped at the other end": lambda: (
                kept * (torch.cat([(sink - total).exp().expand_as(total), weights[..., :-1]], -1) @ v)
            ),
            "with the mean value": lambda: out * kept + (1 - kept) * v.mean(-2, keepdim=True),
            "a gate": lambda: out * (1 - sink.sigmoid()),
            "not moved": lambda: out * (total - seen.amax(-1, keepdim=True) - sink).sigmoid(),
        },
        c.sink,
    )


def call(draw: Draw, scale: float = 1.5) -> Case:
    return given.heads(draw, draw.normal("head", scale=1.5), scale=scale)


def large_sinks(draw: Draw) -> Case:
    """The first head's sink takes everything; beside it scores are so low that exp of them is 0."""
    case = call(draw)
    case.args[3][0] = 200.0
    case.args[3][1:] = -200.0
    return case


TRIALS = (
    *given.trials(call),
    Trial(
        "large sinks",
        large_sinks,
        given.SIZES,
        kind="fragile",
        says="The maximum that is subtracted before exp must be that of scores and sink.",
    ),
)

PROBES = given.causal_probes(call, given.SIZES)
