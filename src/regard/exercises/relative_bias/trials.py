"""Reference, calls and probes of `relative-bias`."""

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Probe, Trial, changed, neighbour_probe
from regard.exercises.shared import given
from regard.exercises.shared.attention import Choices, attended, computed


def reference(
    case: Case,
    *,
    distance: str = "(j - i).clamp(-far, far) + far",
    heads: str = "bias",
    beyond: str = "bias",
    bias: str = "scores / scale + bias",
    after: str = "out",
    **choices: str,
) -> Tensor:
    """Attention with the bias of each distance."""
    c, (q, k, v, table) = Choices(**choices), case.args
    q, k, v = given.taken(c, q, k, v)
    place = torch.arange(q.shape[2])
    places = {"i": place[:, None], "j": place, "far": table.shape[1] // 2}
    column = computed(distance, **places)  # below 0 counts from the end
    added = computed(beyond, bias=computed(heads, bias=table[:, column]), **places)
    out = attended(c, q, k, v, scaled=bias, bias=added)[0]
    return computed(after, out=out, bias=added, v=v)


def call(draw: Draw, scale: float = 1.5) -> Case:
    return given.heads(draw, draw.normal("head", 2 * draw["far"] + 1, scale=1.5), scale=scale)


SIZES = {**given.SIZES, "far": 2}

farthest = changed(call, lambda case, draw: case.args[3][:, 0].add_(2.0))
FARTHEST = "the first column was changed: rows with a key that far before them must move, and no others."

TRIALS = (
    *given.trials(call, far=2),
    Trial("no distance is clipped", call, {**SIZES, "far": 6}, variants=True),
    Trial("the table is longer than needed", call, {**SIZES, "far": 11}),
    Trial("one distance to each side", call, {**SIZES, "far": 1}),
    Trial("as many columns as positions", call, {**SIZES, "far": 3}),
    Trial("a single column", call, {**SIZES, "far": 0}),
)

PROBES = (
    neighbour_probe(lambda draw: given.heads(draw, torch.ones(draw["head"], 3)), given.SIZES),
    Probe("the farthest column counts for all beyond it", farthest, SIZES, says=FARTHEST),
)
