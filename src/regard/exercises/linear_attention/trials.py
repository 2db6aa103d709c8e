"""Reference, calls and probes of `linear-attention`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.checking.trials import Case, Code, Draw, Probe, Trial, changed, worked

ELU = Code("lambda x: torch.nn.functional.elu(x) + 1")
EXP = Code("lambda x: torch.exp(x / 2)")
# Twice as many features as dimensions: phi must be given rows, and sizes must not be taken from d.
SPLIT = Code("lambda x: torch.cat([torch.relu(x) + 0.5, torch.relu(-x) + 0.5], dim=-1)")


FORMULAS = {
    "phi": "features(q), features(k)",
    "fq": "phi[0]",
    "fk": "phi[1]",
    "table": "fq @ fk.T",
    "causal": "asked & (key > query)",
    "seen": "table.masked_fill(causal, 0.0)",
    "shown": "(~causal).to(table.dtype)",
    "running": "(fq * fk.cumsum(-1)).sum(-1, keepdim=True)",
    "above": "seen @ v",
    "total": "seen.sum(-1, keepdim=True)",
    "below": "total",
    "output": "above / below",
}


def reference(case: Case, **choices: str) -> Tensor:
    """The average of the values by products of features, from the whole table of them."""
    (q, k, v, code), asked = case.args, bool(case.kwargs.get("causal", False))
    names = {"q": q, "k": k, "v": v, "features": code.value(), "asked": asked, "n": len(q)}
    key, root = torch.arange(len(q)), q.shape[1] ** 0.5
    output: Tensor = worked(FORMULAS, choices, key=key, query=key[:, None], root=root, **names)
    return output


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
ALIKE, LONG = dict.fromkeys(SIZES, 5), {"n": 61, "d": 5, "m": 7}
TABLE = "A table of n x n is what linear attention does without: multiply phi(K)^T V first."
LATER = "with causal=True, later keys and values were changed: earlier rows may not move."
ALONE = "one query was changed: the other rows may not move."
causal = partial(whole, causal=True)

TRIALS = (
    Trial("all positions", whole, SIZES, variants=True),
    Trial("causal", causal, SIZES, variants=True),
    Trial("more features than dimensions", partial(whole, phi=SPLIT), {**SIZES, "n": 5}),
    Trial("causal, more features than dimensions", partial(causal, phi=SPLIT), {**SIZES, "m": 2}),
    Trial("another feature map", partial(whole, phi=EXP, causal=False), {"n": 5, "d": 2, "m": 3}),
    Trial("all sizes alike", whole, ALIKE),
    Trial("causal, all sizes alike", causal, ALIKE),
    Trial("one position", whole, {**SIZES, "n": 1}),
    Trial("a long sequence", whole, LONG, grad=False, most_numbers=below_a_table, says=TABLE),
)
CHANGED = changed(whole, lambda case, draw: case.args[0][0].mul_(2.0))

PROBES = (
    Probe("the future has no say", changed(causal, change_future), SIZES, says=LATER),
    Probe("a query stands alone", CHANGED, SIZES, says=ALONE),
)
