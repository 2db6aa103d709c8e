"""Reference, calls and probes of `quadratic-features`."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Probe, Trial, changed, worked

FORMULAS = {
    "constant": "1",
    "linear": "2**0.5",
    "squares": "1",
    "crossed": "2**0.5",
    "parts": "constant + 0 * x[..., :1], linear * x, squares * x**2, crossed * x[..., i] * x[..., j]",
}


def reference(case: Case, *, axis: str = "-1", **choices: str) -> Tensor:
    """Products of features, which are made of the numbers along an axis."""

    def features(x: Tensor) -> Tensor:
        x, d = x.transpose(int(axis), -1), x.shape[int(axis)]
        i, j = torch.triu_indices(d, d, offset=1)
        return torch.cat(worked(FORMULAS, choices, x=x, d=d, i=i, j=j), -1).transpose(int(axis), -1)

    q, k = (features(x) for x in case.args)
    return q @ k if q.dim() == 1 else q @ k.mT


def pairs(draw: Draw, *before: str) -> Case:
    return Case((draw.normal(*before, "n", "d"), draw.normal(*before, "m", "d")))


AXES = {"batch": 2, "head": 3, "n": 5, "m": 7, "d": 2}

TRIALS = (
    Trial("queries and keys", pairs, {"n": 5, "m": 7, "d": 3}, variants=True),
    Trial("more axes", lambda draw: pairs(draw, "batch", "head"), AXES, variants=True),
    Trial("two single vectors", lambda draw: Case((draw.normal("d"), draw.normal("d"))), {"d": 5}),
    Trial("one dimension", pairs, {"n": 3, "m": 2, "d": 1}),
    Trial("many dimensions", pairs, {"n": 2, "m": 3, "d": 11}),
    Trial("as many vectors as dimensions", pairs, {"n": 5, "m": 5, "d": 5}),
)

ALONE = "one query was changed: the products of the others may not move."
CHANGED = changed(pairs, lambda case, draw: case.args[0][0].add_(1.5))

PROBES = (Probe("a vector stands alone", CHANGED, {"n": 5, "m": 7, "d": 3}, says=ALONE),)
