"""Reference, calls and probes of `cross-attention`."""

from functools import partial
from typing import Any

from torch import Tensor

from regard.checking.trials import Case, Draw, Probe, Trial, changed, neighbour_probe
from regard.exercises.shared.attention import Choices, Layer, opened, past_lengths
from regard.exercises.shared.lengths import WithLengths, edges, large_scores, padding_probe


def reference(case: Case, **choices: str) -> Tensor:
    """What x finds in the context."""
    c, (x, context, lengths) = Choices(**choices), (*case.args, None)[:3]
    layer, hidden = Layer(case.weights, case.init[2]), partial(past_lengths, lengths, c=c)
    out, _, scores = layer(c, x, context, context, hidden, context_dim=context.shape[-1])
    return opened(out, hidden(scores), c)


def layer(draw: Draw, lengths: Tensor | None = None, scale: float = 1.0) -> Case:
    width, wide = draw["head"] * draw["head_dim"], draw["context_dim"]
    inner = {"q": width, "k": wide, "v": wide, "o": width}
    weights = {f"W_{letter}.weight": 1.5 * draw.weight(width, inner[letter]) for letter in inner}
    x, context = draw.normal("batch", "query", width, scale=scale), draw.normal("batch", "key", wide)
    args: tuple[Any, ...] = (x, context) if lengths is None else (x, context, lengths)
    return Case(args, init=(width, wide, draw["head"]), weights=weights)


CALLS = WithLengths(layer)
padded = CALLS.per_sequence
SIZES = {"batch": 2, "query": 3, "key": 7, "head": 3, "head_dim": 5, "context_dim": 11}
turned = changed(layer, lambda case, draw: case.args[1][:, -1].mul_(-1.5))
SEEN = "the last position of the context was changed: every output must move."
ALIKE = {**SIZES, "query": 5, "key": 5, "head_dim": 2, "context_dim": 6}

TRIALS = (
    Trial("no lengths", layer, SIZES, variants=True),
    Trial("a padded context", padded, SIZES, variants=True),
    Trial("x longer than the context", padded, {**SIZES, "query": 11, "key": 5}),
    Trial("as long and as wide as one another", padded, ALIKE),
    *edges(padded, SIZES),
    Trial("a length of 0", CALLS.with_empty, SIZES, grad=False),
    large_scores(partial(layer, scale=200.0), SIZES),
)

PROBES = (
    padding_probe(padded, SIZES),
    neighbour_probe(padded, SIZES),
    Probe("all of the context is seen", turned, SIZES, says=SEEN),
)
