"""Reference, calls and probes of `cross-attention`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Probe, Trial, changed, first_sequence
from regard.exercises.shared.attention import Choices, Layer, future, opened, past_lengths
from regard.exercises.shared.lengths import large_scores, lengths_of


def reference(case: Case, **choices: str) -> Tensor:
    """What x finds in the context."""
    c = Choices(**{"causal": "ignored", **choices})
    x, context, lengths = (*case.args, None)[:3]
    past: list[Tensor | None] = []

    def hidden(scores: Tensor) -> Tensor | None:
        tables = [past_lengths(lengths, scores, c), future(scores, True, c)]
        shown = [table.expand(scores.shape) for table in tables if table is not None]
        past.append(torch.stack(shown).any(0) if shown else None)
        return past[0]

    weights, n_head = case.weights, case.init[2]
    if c.scale.startswith("root of the context's"):
        share = context.shape[-1] / (n_head if c.scale == "root of the context's share of a head" else 1)
        more = (weights["W_q.weight"].shape[0] / n_head / share) ** 0.5
        weights = {**weights, "W_q.weight": weights["W_q.weight"] * more}
    out = Layer(weights, n_head)(c, x, context, context, hidden)[0]
    return opened(out, past[0], c)


def layer(draw: Draw, lengths: Tensor | None = None, scale: float = 1.0) -> Case:
    width, wide = draw["head"] * draw["head_dim"], draw["context_dim"]
    inner = {"q": width, "k": wide, "v": wide, "o": width}
    weights = {f"W_{letter}.weight": 1.5 * draw.weight(width, inner[letter]) for letter in inner}
    x = draw.normal("batch", "query", width, scale=scale)
    args: tuple[Any, ...] = (x, draw.normal("batch", "key", wide))
    return Case(
        args if lengths is None else (*args, lengths), init=(width, wide, draw["head"]), weights=weights
    )


def padded(draw: Draw) -> Case:
    return layer(draw, lengths_of(draw))


def empty(draw: Draw) -> Case:
    lengths = lengths_of(draw)
    lengths[0] = 0
    return layer(draw, lengths)


def change_padding(case: Case, draw: Draw) -> None:
    _, context, lengths = case.args
    context[torch.arange(draw["key"]) >= lengths[:, None]] += 2.0


SIZES = {"batch": 2, "query": 3, "key": 7, "head": 3, "head_dim": 5, "context_dim": 11}
ALIKE = {**SIZES, "query": 5, "key": 5, "head_dim": 2, "context_dim": 6}

TRIALS = (
    Trial("no lengths", layer, SIZES, variants=True),
    Trial("a padded context", padded, SIZES, variants=True),
    Trial("x longer than the context", padded, {**SIZES, "query": 11, "key": 5}),
    Trial("as long and as wide as one another", padded, ALIKE),
    Trial("as many sequences as heads", padded, {**SIZES, "batch": 3}),
    Trial("batch of one", padded, {**SIZES, "batch": 1}),
    Trial("one head", padded, {**SIZES, "head": 1}),
    Trial("one position that looks", padded, {**SIZES, "query": 1}),
    Trial("a context of one position", layer, {**SIZES, "key": 1}),
    Trial("a length of 0", empty, SIZES, grad=False),
    large_scores(lambda draw: layer(draw, scale=200.0), SIZES),
)

PROBES = (
    Probe(
        "padding has no say",
        changed(padded, change_padding),
        SIZES,
        says="the context past its length was changed: nothing may move.",
    ),
    Probe(
        "a neighbour has no say",
        changed(padded, first_sequence),
        {**SIZES, "batch": 3},
        says="sequence 0 was changed: the others may not move.",
    ),
    Probe(
        "all of the context is seen",
        changed(layer, lambda case, draw: case.args[1][:, -1].mul_(-1.5)),
        SIZES,
        says="the last position of the context was changed: every output must move.",
    ),
)
