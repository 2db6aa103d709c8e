"""Reference, calls and probes of `tiny-gpt`."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.checking.trials import Case, Draw, Probe, Trial, changed, formula, neighbour_probe
from regard.exercises.shared import blocks
from regard.exercises.shared.attention import computed, future


def reference(
    case: Case,
    *,
    places: str = "table[count]",
    embedded: str = "tokens + at",
    begins: str = "x",
    layers: str = "range(n_layer)",
    enters: str = "x",
    leaves: str = "out",
    behind: str = "x",
    last: str = "head(normed(x))",
    **choices: str,
) -> Tensor:
    """The logits."""
    (ids,), (_, width, n_head, _, n_layer, context), weights = case.args, case.init, case.weights
    c, tied = blocks.Choices(**choices), weights["tokens.weight"]

    def normed(x: Tensor) -> Tensor:
        return F.layer_norm(x, (width,), weights["norm.weight"], weights["norm.bias"])

    def block(number: int, x: Tensor) -> Tensor:
        start = f"blocks.{number}."
        part = {name.removeprefix(start): weight for name, weight in weights.items() if start in name}
        inner = replace(case, weights=part, init=(width, n_head))
        return blocks.Reference(inner, c, lambda scores: future(scores, True, c))(x)

    count = torch.arange(ids.shape[1])
    at = formula(places, table=weights["positions.weight"], count=count, context=context, ids=ids)
    x = computed(begins, x=formula(embedded, tokens=tied[ids], at=at, width=width), normed=normed)
    for number in formula(layers, n_layer=n_layer):
        x = computed(enters, x=x, at=at, number=number)
        out = block(number, x)
        x = computed(leaves, x=x, out=out, normed=normed, number=number, n_layer=n_layer)
    x = computed(behind, x=x, at=at)
    return computed(last, x=x, normed=normed, tied=tied, head=lambda x: x @ weights["head.weight"].T)


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

LAST = "the last token was changed: the logits before it may not move."

PROBES = (
    Probe("the future has no say", changed(model, change_last), SIZES, says=LAST),
    neighbour_probe(model, SIZES),
)
