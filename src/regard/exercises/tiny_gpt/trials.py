"""Reference, calls and probes of `tiny-gpt`."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.checking.trials import Case, Draw, Probe, Trial, changed
from regard.exercises.shared import blocks
from regard.exercises.shared.attention import future


def reference(
    case: Case,
    *,
    places: str = "from 0",
    embedded: str = "as they are",
    layers: str = "in order",
    last: str = "norm, then head",
    **choices: str,
) -> Tensor:
    """The logits."""
    (ids,), (_, width, n_head, _, n_layer, context), weights = case.args, case.init, case.weights
    c = blocks.Choices(**choices)
    table = weights["positions.weight"]
    count = torch.arange(ids.shape[1])
    place = {
        "from 1": count + 1,
        "the last rows": count + context - len(count),
        "backwards": count.flip(0),
        "of the batch": torch.arange(len(ids))[:, None],
    }
    at = table[place.get(places, count)]
    if places in ("left out", "the first one's"):
        at = table[0] if places == "the first one's" else torch.zeros_like(at)
    tokens = weights["tokens.weight"][ids] * (width**0.5 if embedded == "times the root" else 1.0)
    x = {"multiplied": tokens * at, "added behind the blocks": tokens}.get(embedded, tokens + at)

    def normed(x: Tensor) -> Tensor:
        return F.layer_norm(x, (width,), weights["norm.weight"], weights["norm.bias"])

    def block(number: int, x: Tensor) -> Tensor:
        start = f"blocks.{number}."
        part = {name.removeprefix(start): weight for name, weight in weights.items() if start in name}
        inner = replace(case, weights=part, init=(width, n_head))
        out = blocks.Reference(inner, c, lambda scores: future(scores, True, c))(x)
        return x + out if layers == "with one more residual" else out

    x = normed(x) if last in ("norm first", "norm first too") else x
    order = {
        "the last alone": [n_layer - 1],
        "the first alone": [0],
        "the first again": [0] * n_layer,
        "backwards": list(range(n_layer))[::-1],
    }
    for number in order.get(layers, range(n_layer)):
        x = block(number, x + at if embedded == "added to every layer" and number > 0 else x)
        x = normed(x) if last == "norm after every block" and number < n_layer - 1 else x
    x = x + at if embedded == "added behind the blocks" else x
    x = x if last in ("without the norm", "norm first") else normed(x)
    logits = F.linear(x, weights["tokens.weight" if last == "tied" else "head.weight"])
    return {"softmax": logits.softmax(-1), "log_softmax": logits.log_softmax(-1)}.get(last, logits)


def model(draw: Draw) -> Case:
    width, vocab = draw["head"] * draw["head_dim"], draw["vocab"]
    weights = {f"{name}.weight": draw.normal(n, width) for name, n in (("tokens", vocab), ("positions", 7))}
    for number in range(draw["layer"]):
        inner = blocks.block(draw).weights
        weights |= {f"blocks.{number}.{name}": weight for name, weight in inner.items()}
    weights |= {
        "norm.weight": draw.normal(width, scale=0.3, mean=1.0),
        "norm.bias": draw.normal(width, scale=0.5),
    }
    weights["head.weight"] = draw.weight(vocab, width)
    ids = draw.integers(0, vocab - 1, "batch", "position")
    return Case((ids,), init=(vocab, width, draw["head"], draw["ff_dim"], draw["layer"], 7), weights=weights)


def change_last(case: Case, draw: Draw) -> None:
    case.args[0][:, -1] = (case.args[0][:, -1] + 1) % draw["vocab"]


def change_first_sequence(case: Case, draw: Draw) -> None:
    case.args[0][0] = (case.args[0][0] + 1) % draw["vocab"]


SIZES = {"batch": 2, "position": 5, "vocab": 11, "layer": 2, "head": 3, "head_dim": 2, "ff_dim": 7}

TRIALS = (
    Trial("two layers", model, SIZES, variants=True),
    Trial("three layers", model, {**SIZES, "layer": 3, "position": 3}),
    Trial("one layer", model, {**SIZES, "layer": 1}),
    Trial("as long as the context", model, {**SIZES, "position": 7}),
    Trial("as many sequences as positions", model, {**SIZES, "batch": 5}),
    Trial("one head", model, {**SIZES, "head": 1, "head_dim": 5}),
    Trial("batch of one", model, {**SIZES, "batch": 1}),
    Trial("one position", model, {**SIZES, "position": 1}),
)

PROBES = (
    Probe(
        "the future has no say",
        changed(model, change_last),
        SIZES,
        says="the last token was changed: the logits before it may not move.",
    ),
    Probe(
        "a neighbour has no say",
        changed(model, change_first_sequence),
        {**SIZES, "batch": 3},
        says="sequence 0 was changed: the others may not move.",
    ),
)
