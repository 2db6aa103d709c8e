"""What `multi-head-mask` and `wide-values` share: reference, calls and probes of layers that take a mask."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Probe, Trial, changed, formula
from regard.exercises.shared.attention import Choices, Layer, computed, opened
from regard.exercises.shared.lengths import edges, edited, large_scores


def reference(
    case: Case, *, table: str = "hidden", wide: str = "weight", no_mask: str = "None", **choices: str
) -> Tensor:
    """The layer's output; rows that see nothing as the conventions say."""
    c, n_head, mask = Choices(**choices), case.init[1], case.kwargs.get("mask")
    if mask is None:
        mask = formula(no_mask, n_query=case.args[0].shape[1], n_key=case.args[1].shape[1])
    hidden = None
    if mask is not None:
        each = mask.dim() == 3  # beside scores of (batch, head, query, key)
        lined_up = (mask == 0)[:, None] if each else (mask == 0)[None, None]
        hidden = computed(table, hidden=lined_up, flat=mask == 0, each=each, n_head=n_head)
    weights = dict(case.weights)
    weights["W_v.weight"] = computed(wide, weight=weights["W_v.weight"], n_head=n_head)
    queries, keys, values = case.args
    out = Layer(weights, n_head)(c, queries, keys, values, lambda scores: hidden)[0]
    return opened(out, hidden, c)


def table(draw: Draw, *dims: str) -> Tensor:
    """A mask in which every query sees something and, where it can, not all; no two rows need be alike."""
    mask = draw.integers(0, 1, *dims)
    seen = draw.integers(0, draw["key"] - 1, *dims[:-1], 1)
    mask.scatter_(-1, seen, 1)
    if draw["key"] > 1:
        mask.scatter_(-1, (seen + 1) % draw["key"], 0)
    return mask


SIZES = {"batch": 2, "query": 3, "key": 7, "head": 3, "head_dim": 5}
THREE = {**SIZES, "batch": 3}
KEY = "a key that no query sees was changed, and its value: nothing may move."
MASK = "the mask of sequence 0 was changed: sequences 1 and 2 may not move."


def hide_last(case: Case, draw: Draw) -> None:
    case.kwargs["mask"][:, [0, -1]] = torch.tensor([1, 0])


def change_last(case: Case, draw: Draw) -> None:
    for x in case.args[1:]:
        x[:, -1] += 3.0


def change_mask(case: Case, draw: Draw) -> None:
    mask = case.kwargs["mask"]
    mask[0] = 1 - mask[0]
    mask[0, :, 0] = 1


def checks(wide: int) -> tuple[tuple[Trial, ...], tuple[Probe, ...]]:
    """Trials and probes of a layer whose values are `wide` times as wide as the model."""

    def layer(draw: Draw, mask: Tensor | None = None, scale: float = 1.0) -> Case:
        width = draw["head"] * draw["head_dim"]
        args = tuple(draw.normal("batch", word, width, scale=scale) for word in ("query", "key", "key"))
        rows = {"q": width, "k": width, "v": wide * width}
        weights = {f"W_{letter}.weight": draw.weight(rows[letter], width) for letter in rows}
        weights["W_o.weight"] = draw.weight(width, wide * width)
        options = {} if mask is None else {"mask": mask}
        return Case(args, options, init=(width, draw["head"]), weights=weights)

    def causal(draw: Draw) -> Case:
        case = layer(draw, torch.ones(draw["query"], draw["query"], dtype=torch.long).tril())
        return case.with_args(*(case.args[0].clone() for _ in range(3)))

    def one_mask(draw: Draw) -> Case:
        return layer(draw, table(draw, "query", "key"))

    def mask_each(draw: Draw) -> Case:
        return layer(draw, table(draw, "batch", "query", "key"))

    unseen = edited(one_mask, hide_last)
    empty = edited(mask_each, lambda case, draw: case.kwargs["mask"][0, 0].zero_())
    trials = (
        Trial("no mask", layer, SIZES, variants=True),
        Trial("a mask for all sequences", one_mask, SIZES, variants=True),
        Trial("a mask for each sequence", mask_each, SIZES, variants=True),
        Trial("causal self-attention", causal, {**SIZES, "query": 5, "head": 2}),
        *edges(mask_each, SIZES),
        Trial("a query that sees nothing", empty, SIZES, grad=False),
        large_scores(lambda draw: layer(draw, scale=15.0), SIZES),
    )
    probes = (
        Probe("a hidden key has no say", changed(unseen, change_last), SIZES, says=KEY),
        Probe("a neighbour's mask has no say", changed(mask_each, change_mask), THREE, says=MASK),
    )
    return trials, probes
