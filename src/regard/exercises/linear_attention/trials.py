"""Reference, calls and probes of `linear-attention`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.checking.trials import Case, Code, Draw, Probe, Trial, changed, made
from regard.exercises.shared import attention

ELU = Code("lambda x: torch.nn.functional.elu(x) + 1")
EXP = Code("lambda x: torch.exp(x / 2)")
# Twice as many features as dimensions: phi must be given rows, and sizes must not be taken from d.
SPLIT = Code("lambda x: torch.cat([torch.relu(x) + 0.5, torch.relu(-x) + 0.5], dim=-1)")


def reference(
    case: Case,
    *,
    phi: str = "of both",
    causal: str = "asked and key > query",
    above: str = "products of features",
    below: str = "their sum",
) -> Tensor:
    """The average of the values by products of features, from the whole table of them."""
    queries, keys, values, code = case.args
    features, n = code.value(), len(queries)
    root = queries.shape[1] ** 0.5
    powers = {"of queries, scaled": (1, 0), "of keys, scaled": (0, 1), "of both, scaled": (0.5, 0.5)}
    of_q, of_k = powers.get(phi, (0, 0))
    fq = queries if phi in ("of keys", "of nothing") else features(queries / root**of_q)
    fk = keys if phi in ("of queries", "of nothing") else features(keys / root**of_k)
    if phi == "the other way round":
        fq, fk = fk, fq
    table = features(queries @ keys.T)[:, :n] if phi == "of the product" else fq @ fk.T
    asked = bool(case.kwargs.get("causal", False))
    hidden = attention.future(table, asked, attention.Choices(causal=causal))
    seen = table if hidden is None else table.masked_fill(hidden, 0.0)
    shown = torch.ones_like(table) if hidden is None else (~hidden).to(table.dtype)
    if above == "features normalised apart":
        return torch.matmul((fq / fq.sum(-1, keepdim=True) / (shown @ fk)) @ fk.T * shown, values)
    running = (fq * fk.cumsum(-1)).sum(-1, keepdim=True)  # along the features, where causal
    if above in ("softmax attention", "scaled softmax attention", "softmax of features"):
        scores = table if above == "softmax of features" else queries @ keys.T
        scores = scores / (root if above == "scaled softmax attention" else 1.0)
        weights: Tensor = (scores if hidden is None else scores.masked_fill(hidden, -torch.inf)).softmax(-1)
        return torch.matmul(weights, values)
    if above == "softmax features":
        if hidden is not None:
            raise ValueError("not causal")
        mixed: Tensor = fk.softmax(0).T @ values
        return torch.softmax(fq, -1) @ mixed
    top, total = seen @ values, seen.sum(-1, keepdim=True)
    if above == "all keys":
        top = table @ values
    elif above == "running along the features" and hidden is not None:
        top = running * values
    if below == "along the columns" and values.shape[1] != n:
        raise ValueError("as many values as positions")
    bottom = made(
        {
            "their sum": lambda: total,
            "nothing": lambda: torch.ones_like(total),
            "the length": lambda: torch.full_like(total, n),
            "the number of keys": lambda: (seen != 0).sum(-1, keepdim=True),
            "all keys": lambda: table.sum(-1, keepdim=True),
            "sums of features": lambda: fk.sum(),
            "the query's features": lambda: fq.sum(-1, keepdim=True),
            "running along the features": lambda: total if hidden is None else running,
            "its root": lambda: total.sqrt(),
            "over queries": lambda: seen.sum(0)[:, None],
            "one for all": lambda: seen.sum(),
            "along the columns": lambda: total[:, 0],
            "a mean": lambda: total / n,
            "1 more": lambda: total + 1.0,
            "1e-2 more": lambda: total + 1e-2,
            "1e-3 more": lambda: total + 1e-3,
            "1e-6 more": lambda: total + 1e-6,
            "a root more": lambda: total * fq.shape[-1] ** 0.5,
        },
        below,
    )
    return torch.div(top, bottom)


def whole(draw: Draw, phi: Code = ELU, **kwargs: Any) -> Case:
    # Numbers around 1 keep every sum of products well above 0, whatever is added to it for safety.
    q, k = (draw.normal("n", "d", mean=1.0) for _ in range(2))
    return Case((q, k, draw.normal("n", "m"), phi), kwargs)


def change_future(case: Case, draw: Draw) -> None:
    for x in case.args[1:3]:
        x[draw["n"] // 2 + 1 :] -= 1.5


def below_a_table(sizes: Mapping[str, int]) -> int:
    return sizes["n"] * sizes["n"] - 1


SIZES = {"n": 7, "d": 3, "m": 5}

TRIALS = (
    Trial("all positions", whole, SIZES, variants=True),
    Trial("causal", partial(whole, causal=True), SIZES, variants=True),
    Trial("more features than dimensions", partial(whole, phi=SPLIT), {**SIZES, "n": 5}),
    Trial("causal, more features than dimensions", partial(whole, phi=SPLIT, causal=True), {**SIZES, "m": 2}),
    Trial("another feature map", partial(whole, phi=EXP, causal=False), {"n": 5, "d": 2, "m": 3}),
    Trial("all sizes alike", whole, {"n": 5, "d": 5, "m": 5}),
    Trial("causal, all sizes alike", partial(whole, causal=True), {"n": 5, "d": 5, "m": 5}),
    Trial("one position", whole, {**SIZES, "n": 1}),
    Trial(
        "a long sequence",
        whole,
        {"n": 61, "d": 5, "m": 7},
        grad=False,
        most_numbers=below_a_table,
        says="A table of n x n is what linear attention does without: multiply phi(K)^T V first.",
    ),
)

PROBES = (
    Probe(
        "the future has no say",
        changed(partial(whole, causal=True), change_future),
        SIZES,
        says="with causal=True, later keys and values were changed: earlier rows may not move.",
    ),
    Probe(
        "a query stands alone",
        changed(whole, lambda case, draw: case.args[0][0].mul_(2.0)),
        SIZES,
        says="one query was changed: the other rows may not move.",
    ),
)
