"""Reference, calls and probes of `sampling`."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Impossible, Trial, formula, neighbour_probe, worked

COLDEST = "x.masked_fill(x < x.amax(-1, keepdim=True), -torch.inf)"
LARGEST = "x.masked_fill(x < x.topk(min(k, n)).values[:, -1:], -torch.inf)"
NUCLEUS = {
    "probs": "x.softmax(-1)",
    "places": "probs.argsort(-1, descending=True)",
    "ranked": "probs.gather(-1, places)",
    "before": "ranked.cumsum(-1) - ranked",
    "written": "places",
    "gone": "torch.zeros_like(x, dtype=torch.bool).scatter(-1, written, before >= p)",
    "left": "x.masked_fill(gone, -torch.inf)",
}


def reference(
    case: Case,
    *,
    temperature: str = f"x / heat if heat else {COLDEST}",
    top_k: str = LARGEST,
    order: str = "top_p(top_k(heated(logits)))",
    rest: str = "kept.softmax(-1)",
    **choices: str,
) -> Tensor:
    """The probabilities from which a token is drawn."""
    (logits,), n = case.args, case.args[0].shape[-1]
    k, p = case.kwargs.get("top_k"), case.kwargs.get("top_p", 1.0)
    steps = {
        "heated": lambda x: formula(temperature, x=x, heat=case.kwargs.get("temperature", 1.0)),
        "top_k": lambda x: x if k is None else formula(top_k, x=x, k=k, n=n),
        "top_p": lambda x: x if p >= 1 else worked(NUCLEUS, choices, x=x, p=p, n=n),
    }
    kept = formula(order, logits=logits, **steps)
    probabilities: Tensor = formula(rest, logits=logits, kept=kept, **steps)
    return probabilities


def call(draw: Draw, **kwargs: Any) -> Case:
    """Logits of which no two of a row, and no sum and 0.6 or 0.9, are so close that rounding would tell."""
    for _ in range(500):
        gaps = torch.stack([draw.distinct(draw["vocab"], draw["vocab"]) for _ in range(draw["batch"])])
        logits = gaps * 0.7 + draw.uniform("batch", "vocab", high=0.3) - 0.35 * draw["vocab"]
        p, n = kwargs.get("top_p", 1.0), draw["vocab"]
        kept = [
            formula(LARGEST, x=logits / heat, k=k, n=n).softmax(-1)
            for heat in (1.0, kwargs.get("temperature") or 1.0)
            for k in (n, kwargs.get("top_k", n))
        ]
        sums = torch.stack(kept).sort(-1, descending=True).values.cumsum(-1)
        if p >= 1.0 or float((sums - p).abs().min()) > 0.02:
            return Case((logits,), kwargs)
    raise Impossible


def trial(name: str, *, variants: bool = False, batch: int = 3, vocab: int = 7, **options: Any) -> Trial:
    sizes = {"batch": batch, "vocab": vocab}
    return Trial(name, partial(call, **options), sizes, variants=variants, grad=False)


TRIALS = (
    trial("as it is", variants=True),
    trial("hot", temperature=2.5),
    trial("cold", temperature=0.4),
    trial("temperature 0", temperature=0.0),
    trial("top-k", top_k=3, variants=True),
    trial("top-k of 1", top_k=1),
    trial("top-k above the vocabulary", top_k=50),
    trial("top-p", top_p=0.9, variants=True),
    trial("the first token is above top-p", top_p=0.1),
    trial("top-k and top-p", top_k=3, top_p=0.8, batch=5, vocab=11),
    trial("all three", temperature=2.0, top_k=5, top_p=0.7, batch=5, vocab=11),
    trial("batch of one", temperature=1.5, top_k=4, top_p=0.75, batch=1),
    trial("all sizes alike", top_p=0.6, batch=5, vocab=5),
)

PROBES = (neighbour_probe(partial(call, top_k=3, top_p=0.9), {"vocab": 7}),)
