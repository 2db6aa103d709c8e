"""What `multi-head-mask` and `wide-values` share: reference, calls and probes of layers that take a mask."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Probe, Trial, changed
from regard.exercises.shared import attention
from regard.exercises.shared.attention import Layer, opened
from regard.exercises.shared.lengths import large_scores


@dataclass(frozen=True)
class Choices(attention.Choices):
    """Attention, and what becomes of the mask and of wide values."""

    table: str = "for all heads"
    values: str = "whole"


def reference(case: Case, **choices: str) -> Tensor:
    """The layer's output; rows that see nothing as the conventions say."""
    c, n_head, table = Choices(**choices), case.init[1], case.kwargs.get("mask")
    if table is None and c.table == "causal where there is none":
        table = torch.ones(case.args[0].shape[1], case.args[1].shape[1]).tril()
    hidden = None if table is None else _hidden(table == 0, n_head, c)
    weights, (queries, keys, values) = case.weights, case.args
    if c.values != "whole":
        weights = {**weights, "W_v.weight": _values(weights["W_v.weight"], n_head, c)}
    out = Layer(weights, n_head)(c, queries, keys, values, lambda scores: hidden)[0]
    return opened(out, hidden, c)


def _hidden(hidden: Tensor, n_head: int, c: Choices) -> Tensor:
    """The mask beside scores of (batch, head, query, key)."""
    if c.table == "transposed":
        hidden = hidden.transpose(-2, -1)
    if hidden.dim() == 2:
        return hidden[:, None] if c.table == "queries on the heads" else hidden[None, None]
    if c.table == "batch on the heads":
        return hidden[None]
    if c.table == "of the first sequence":
        return hidden[:1, None]
    if c.table == "repeated in the wrong order":
        return hidden.repeat(n_head, 1, 1).reshape(-1, n_head, *hidden.shape[1:])
    return hidden[:, None]


def _values(weight: Tensor, n_head: int, c: Choices) -> Tensor:
    """The rows of the values' layer, as heads get them."""
    if c.values == "cut in two":
        return weight.reshape(2, n_head, -1, weight.shape[1]).transpose(0, 1).flatten(0, 2)
    first, second = weight.reshape(n_head, 2, -1, weight.shape[1]).unbind(1)
    second = torch.zeros_like(second) if c.values == "without their second half" else first
    return torch.stack([first, second], 1).flatten(0, 2)


def table(draw: Draw, *dims: str) -> Tensor:
    """A mask in which every query sees something and, where it can, not all; no two rows need be alike."""
    mask = draw.integers(0, 1, *dims)
    seen = draw.integers(0, draw["key"] - 1, *dims[:-1], 1)
    mask.scatter_(-1, seen, 1)
    if draw["key"] > 1:
        mask.scatter_(-1, (seen + 1) % draw["key"], 0)
    return mask


SIZES = {"batch": 2, "query": 3, "key": 7, "head": 3, "head_dim": 5}


def checks(wide: int) -> tuple[tuple[Trial, ...], tuple[Probe, ...]]:
    """Trials and probes of a layer whose values are `wide` times as wide as the model."""

    def layer(draw: Draw, mask: Tensor | None, scale: float = 1.0, *, itself: bool = False) -> Case:
        width = draw["head"] * draw["head_dim"]
        words = ("query",) if itself else ("query", "key", "key")
        args = tuple(draw.normal("batch", word, width, scale=scale) for word in words)
        inner = {"q": width, "k": width, "v": wide * width}
        weights = {f"W_{letter}.weight": draw.weight(size, width) for letter, size in inner.items()}
        weights["W_o.weight"] = draw.weight(width, wide * width)
        given = tuple(x.clone() for x in args * 3) if itself else args
        options = {} if mask is None else {"mask": mask}
        return Case(given, options, init=(width, draw["head"]), weights=weights)

    def causal(draw: Draw) -> Case:
        triangle = torch.ones(draw["query"], draw["query"], dtype=torch.long).tril()
        return layer(draw, triangle, itself=True)

    def one_mask(draw: Draw) -> Case:
        return layer(draw, table(draw, "query", "key"))

    def mask_each(draw: Draw) -> Case:
        return layer(draw, table(draw, "batch", "query", "key"))

    def empty(draw: Draw) -> Case:
        case = mask_each(draw)
        case.kwargs["mask"][0, 0] = 0
        return case

    def last_hidden(draw: Draw) -> Case:
        case = one_mask(draw)
        case.kwargs["mask"][:, -1] = 0
        case.kwargs["mask"][:, 0] = 1
        return case

    def change_last(case: Case, draw: Draw) -> None:
        for x in case.args[1:]:
            x[:, -1] += 3.0

    def change_mask(case: Case, draw: Draw) -> None:
        mask = case.kwargs["mask"]
        mask[0] = 1 - mask[0]
        mask[0, :, 0] = 1

    trials = (
        Trial("no mask", lambda draw: layer(draw, None), SIZES, variants=True),
        Trial("a mask for all sequences", one_mask, SIZES, variants=True),
        Trial("a mask for each sequence", mask_each, SIZES, variants=True),
        Trial("causal self-attention", causal, {**SIZES, "query": 5, "head": 2}),
        Trial("batch of one", mask_each, {**SIZES, "batch": 1}),
        Trial("as many sequences as heads", mask_each, {**SIZES, "batch": 3}),
        Trial("as many queries as keys", mask_each, {**SIZES, "query": 7}),
        Trial("one query", one_mask, {**SIZES, "query": 1}),
        Trial("one head", one_mask, {**SIZES, "head": 1}),
        Trial("a query that sees nothing", empty, SIZES, grad=False),
        large_scores(lambda draw: layer(draw, None, 15.0), SIZES),
    )
    probes = (
        Probe(
            "a hidden key has no say",
            changed(last_hidden, change_last),
            SIZES,
            says="a key that no query sees was changed, and its value: nothing may move.",
        ),
        Probe(
            "a neighbour's mask has no say",
            changed(mask_each, change_mask),
            {**SIZES, "batch": 3},
            says="the mask of sequence 0 was changed: sequences 1 and 2 may not move.",
        ),
    )
    return trials, probes
