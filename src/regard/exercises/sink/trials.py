"""Reference, calls and probes of `sink`."""

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Trial
from regard.exercises.shared import given
from regard.exercises.shared.attention import Choices, attended, computed, future


def reference(
    case: Case, *, sink: str = "out * kept", sink_of: str = "sinks[:, None, None]", **choices: str
) -> Tensor:
    """Plain attention times what the sink leaves of the weight."""
    c, (q, k, v, sinks) = Choices(**choices), case.args
    q, k, v = given.taken(c, q, k, v)
    out, weights, scores = attended(c, q, k, v, lambda scores: future(scores, True, c))
    hidden = future(scores, True, c)
    seen = scores if hidden is None else scores.masked_fill(hidden, -torch.inf)
    total, top = seen.logsumexp(-1, keepdim=True), seen.amax(-1, keepdim=True)
    drain = computed(sink_of, sinks=sinks)
    parts = {"out": out, "weights": weights, "v": v, "total": total, "top": top, "sink": drain}
    kept = (total - drain).sigmoid()  # exp(total) / (exp(total) + exp(sink))
    return computed(sink, kept=kept, dim=q.shape[-1], **parts)


def call(draw: Draw, scale: float = 1.5) -> Case:
    return given.heads(draw, draw.normal("head", scale=1.5), scale=scale)


def large_sinks(draw: Draw) -> Case:
    """The first head's sink takes everything; beside it scores are so low that exp of them is 0."""
    return given.heads(draw, torch.tensor([200.0, *[-200.0] * (draw["head"] - 1)]))


MAXIMUM = "The maximum that is subtracted before exp must be that of scores and sink."

TRIALS = (
    *given.trials(call),
    Trial("large sinks", large_sinks, given.SIZES, kind="fragile", says=MAXIMUM),
)

PROBES = given.causal_probes(call, given.SIZES)
