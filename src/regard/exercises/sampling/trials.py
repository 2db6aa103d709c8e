"""Reference, calls and probes of `sampling`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Impossible, Probe, Trial, changed, first_sequence


def reference(
    case: Case,
    *,
    temperature: str = "divides",
    top_k: str = "the largest",
    top_p: str = "up to the crossing one",
    order: str = "temperature, top-k, top-p",
    rest: str = "-inf",
) -> Tensor:
    """The probabilities from which a token is drawn."""
    (logits,), given = case.args, case.kwargs
    heat, k, p = given.get("temperature", 1.0), given.get("top_k"), given.get("top_p", 1.0)
    steps: tuple[Callable[[Tensor], Tensor], ...] = (
        lambda x: heated(x, heat, temperature),
        lambda x: largest(x, k, top_k),
        lambda x: nucleus(x, p, top_p),
    )
    turns = {"temperature last": (1, 2, 0), "top-p first": (0, 2, 1)}.get(order, (0, 1, 2))
    kept: Tensor = logits
    for turn in turns:
        kept = steps[turn](kept)
    gone = kept == -torch.inf
    if rest == "logits":
        return kept
    if rest == "0":
        return kept.masked_fill(gone, 0.0).softmax(-1)
    if rest == "sorted":
        return kept.softmax(-1).sort(-1, descending=True).values
    if rest == "divided before top-p":
        before = largest(heated(logits, heat, temperature), k, top_k)
        return before.softmax(-1).masked_fill(gone, 0.0)
    if rest == "not divided":
        return heated(logits, heat, temperature).softmax(-1).masked_fill(gone, 0.0)
    return kept.softmax(-1)


def heated(x: Tensor, heat: float, how: str) -> Tensor:
    """The logits at a temperature."""
    if how == "no effect" or (how == "ignored at 0" and heat == 0):
        return x
    if heat == 0 and how == "divides":
        return x.masked_fill(x < x.amax(-1, keepdim=True), -torch.inf)
    return x * heat if how == "multiplied" else x / heat


def largest(x: Tensor, k: int | None, how: str) -> Tensor:
    """The logits that top-k keeps."""
    if k is None or how == "ignored":
        return x
    n = min(k + (1 if how == "one more" else 0), x.shape[-1])
    last = x.topk(n, largest=how != "the smallest").values[:, -1:]
    if how == "one less":
        return x.masked_fill(x <= last, -torch.inf)
    if how == "the smallest":
        return x.masked_fill(x > last, -torch.inf)
    return x.masked_fill(x < (last[:1] if how == "of the first row" else last), -torch.inf)


def nucleus(x: Tensor, p: float, how: str) -> Tensor:
    """The logits that top-p keeps."""
    if p >= 1.0 or how == "ignored":
        return x
    probs = x.softmax(-1)
    if how == "a threshold":
        return x.masked_fill((probs < p) & (x < x.amax(-1, keepdim=True)), -torch.inf)
    ranked = probs if how == "unsorted" else probs.sort(-1, descending=how != "rising").values
    places = torch.arange(x.shape[-1]).expand_as(x)
    if how not in ("unsorted", "not put back"):
        places = probs.argsort(-1, descending=how != "rising")
    before = ranked.cumsum(-1) - (0 if "without the crossing one" in how else ranked)
    before = before - ranked.roll(1, -1) if how == "one more" else before
    if how == "without the crossing one, the first apart":
        before[..., 0] = 0.0
    gone = torch.zeros_like(x, dtype=torch.bool).scatter(-1, places, before >= p)
    return x.masked_fill(gone, -torch.inf)


def call(draw: Draw, **kwargs: Any) -> Case:
    """Logits of which no two of a row, and no sum and 0.6 or 0.9, are so close that rounding would tell."""
    for _ in range(500):
        gaps = torch.stack([draw.distinct(draw["vocab"], draw["vocab"]) for _ in range(draw["batch"])])
        logits = gaps * 0.7 + draw.uniform("batch", "vocab", high=0.3) - 0.35 * draw["vocab"]
        p = kwargs.get("top_p", 1.0)
        sums = [
            largest(logits * heat, k, "the largest").softmax(-1).sort(-1, descending=True).values.cumsum(-1)
            for heat in (1.0, 1 / kwargs.get("temperature", 1.0) if kwargs.get("temperature", 1.0) else 1.0)
            for k in (None, kwargs.get("top_k"))
        ]
        if p >= 1.0 or all(float((total - p).abs().min()) > 0.02 for total in sums):
            return Case((logits,), kwargs)
    raise Impossible


def with_options(**kwargs: Any) -> Any:
    return lambda draw: call(draw, **kwargs)


SIZES = {"batch": 3, "vocab": 7}

TRIALS = (
    Trial("as it is", call, SIZES, variants=True, grad=False),
    Trial("hot", with_options(temperature=2.5), SIZES, grad=False),
    Trial("cold", with_options(temperature=0.4), SIZES, grad=False),
    Trial("temperature 0", with_options(temperature=0.0), SIZES, grad=False),
    Trial("top-k", with_options(top_k=3), SIZES, variants=True, grad=False),
    Trial("top-k of 1", with_options(top_k=1), SIZES, grad=False),
    Trial("top-k above the vocabulary", with_options(top_k=50), SIZES, grad=False),
    Trial("top-p", with_options(top_p=0.9), SIZES, variants=True, grad=False),
    Trial("the first token is above top-p", with_options(top_p=0.1), SIZES, grad=False),
    Trial("top-k and top-p", with_options(top_k=3, top_p=0.8), {"batch": 5, "vocab": 11}, grad=False),
    Trial(
        "all three", with_options(temperature=2.0, top_k=5, top_p=0.7), {"batch": 5, "vocab": 11}, grad=False
    ),
    Trial(
        "batch of one", with_options(temperature=1.5, top_k=4, top_p=0.75), {**SIZES, "batch": 1}, grad=False
    ),
    Trial("all sizes alike", with_options(top_p=0.6), {"batch": 5, "vocab": 5}, grad=False),
)

PROBES = (
    Probe(
        "a neighbour has no say",
        changed(with_options(top_k=3, top_p=0.9), first_sequence),
        SIZES,
        says="the logits of row 0 were changed: the others may not move.",
    ),
)
