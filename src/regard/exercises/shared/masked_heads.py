"""What `multi-head-mask` and `wide-values` share: reference, calls and probes of layers that take a mask."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Probe, Trial
from regard.exercises.shared import attention
from regard.exercises.shared.attention import Layer, opened


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


def layer(
    draw: Draw, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, wide: int = 1
) -> Case:
    """A case with these arguments, and all weights; values are `wide` times as wide as the model."""
    width = draw["head"] * draw["head_dim"]
    return Case(
        (queries, keys, values),
        {} if mask is None else {"mask": mask},
        init=(width, draw["head"]),
        weights={
            "W_q.weight": draw.weight(width, width),
            "W_k.weight": draw.weight(width, width),
            "W_v.weight": draw.weight(wide * width, width),
            "W_o.weight": draw.weight(width, wide * width),
        },
    )


def inputs(draw: Draw) -> tuple[Tensor, Tensor, Tensor]:
    width = draw["head"] * draw["head_dim"]
    return (
        draw.normal("batch", "query", width),
        draw.normal("batch", "key", width),
        draw.normal("batch", "key", width),
    )


def table(draw: Draw, *dims: str) -> Tensor:
    """A mask in which every query sees something and, where it can, not all; no two rows need be alike."""
    mask = draw.integers(0, 1, *dims)
    seen = draw.integers(0, draw["key"] - 1, *dims[:-1], 1)
    mask.scatter_(-1, seen, 1)
    if draw["key"] > 1:
        mask.scatter_(-1, (seen + 1) % draw["key"], 0)
    return mask


class Cases:
    """The cases of a layer whose values are `wide` times as wide as the model."""

    def __init__(self, wide: int) -> None:
        self.wide = wide

    def unmasked(self, draw: Draw) -> Case:
        return layer(draw, *inputs(draw), None, self.wide)

    def itself(self, draw: Draw) -> Case:
        """Self-attention under a causal mask."""
        x = inputs(draw)[0]
        mask = torch.ones(draw["query"], draw["query"], dtype=torch.long).tril()
        return layer(draw, x, x.clone(), x.clone(), mask, self.wide)

    def one_mask(self, draw: Draw) -> Case:
        return layer(draw, *inputs(draw), table(draw, "query", "key"), self.wide)

    def mask_each(self, draw: Draw) -> Case:
        return layer(draw, *inputs(draw), table(draw, "batch", "query", "key"), self.wide)

    def empty(self, draw: Draw) -> Case:
        case = self.mask_each(draw)
        case.kwargs["mask"][0, 0] = 0
        return case

    def large_scores(self, draw: Draw) -> Case:
        case = self.unmasked(draw)
        return case.with_args(*(15.0 * x for x in case.args))

    def hidden_changed(self, draw: Draw) -> tuple[Case, ...]:
        base = self.one_mask(draw)
        base.kwargs["mask"][:, -1] = 0
        base.kwargs["mask"][:, 0] = 1
        queries, keys, values = (x.clone() for x in base.args)
        keys[:, -1] += 3.0
        values[:, -1] -= 3.0
        return base, base.with_args(queries, keys, values)

    def neighbour_changed(self, draw: Draw) -> tuple[Case, ...]:
        base = self.mask_each(draw)
        mask = base.kwargs["mask"].clone()
        mask[0] = 1 - mask[0]
        mask[0, :, 0] = 1
        return base, replace(base, kwargs={"mask": mask})


SIZES = {"batch": 2, "query": 3, "key": 7, "head": 3, "head_dim": 5}


def trials(cases: Cases) -> tuple[Trial, ...]:
    """The trials of a layer with a mask."""
    return (
        Trial("no mask", cases.unmasked, SIZES, variants=True),
        Trial("a mask for all sequences", cases.one_mask, SIZES, variants=True),
        Trial("a mask for each sequence", cases.mask_each, SIZES, variants=True),
        Trial("causal self-attention", cases.itself, {**SIZES, "query": 5, "head": 2}),
        Trial("batch of one", cases.mask_each, {**SIZES, "batch": 1}),
        Trial("as many sequences as heads", cases.mask_each, {**SIZES, "batch": 3}),
        Trial("one query", cases.one_mask, {**SIZES, "query": 1}),
        Trial("one head", cases.one_mask, {**SIZES, "head": 1}),
        Trial("a query that sees nothing", cases.empty, SIZES, grad=False),
        Trial(
            "large scores",
            cases.large_scores,
            SIZES,
            grad=False,
            kind="fragile",
            says="exp of a large score is infinite: subtract the row's maximum first, as torch.softmax does.",
        ),
    )


def probes(cases: Cases) -> tuple[Probe, ...]:
    """The perturbations of a layer with a mask."""
    return (
        Probe(
            "a hidden key has no say",
            cases.hidden_changed,
            SIZES,
            says="a key that no query sees was changed, and its value: nothing may move.",
        ),
        Probe(
            "a neighbour's mask has no say",
            cases.neighbour_changed,
            {**SIZES, "batch": 3},
            says="the mask of sequence 0 was changed: sequences 1 and 2 may not move.",
        ),
    )
