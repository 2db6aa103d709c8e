"""Reference, calls and probes of `linear-attention`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from regard.attention.feature_maps import FeatureMap
from regard.attention.linear import attend_linear
from regard.checking.trials import Case, Code, Draw, Probe, Trial

ELU = Code("lambda x: torch.nn.functional.elu(x) + 1")


# Twice as many features as dimensions: phi must be given rows, and sizes must not be taken from d.
SPLIT = Code("lambda x: torch.cat([torch.relu(x) + 0.5, torch.relu(-x) + 0.5], dim=-1)")


EXP = Code("lambda x: torch.exp(x / 2)")


class Given(FeatureMap):
    """Our linear attention's view of a function given as an argument."""

    def __init__(self, function: Any) -> None:
        object.__setattr__(self, "function", function)

    def phi(self, x: Tensor) -> Tensor:
        features: Tensor = self.function(x)  # type: ignore[attr-defined]
        return features

    def dim(self, qk_dim: int) -> int:
        return int(self.phi(torch.zeros(1, qk_dim)).shape[-1])


def reference(case: Case) -> Tensor:
    """Our linear attention, of one head of one sequence."""
    *inputs, phi = case.args
    q, k, v = (x[None, None] for x in inputs)
    return attend_linear(q, k, v, Given(phi.value()), causal=case.kwargs.get("causal", False)).out[0, 0]


def whole(draw: Draw, phi: Code = ELU, **kwargs: Any) -> Case:
    # Numbers around 1 keep every sum of products well above 0, whatever is added to it for safety.
    q, k = (draw.normal("n", "d", mean=1.0) for _ in range(2))
    return Case((q, k, draw.normal("n", "m"), phi), kwargs)


def causal(draw: Draw, phi: Code = ELU) -> Case:
    return whole(draw, phi, causal=True)


def split_features(draw: Draw) -> Case:
    return whole(draw, SPLIT)


def split_causal(draw: Draw) -> Case:
    return causal(draw, SPLIT)


def exponential(draw: Draw) -> Case:
    return whole(draw, EXP, causal=False)


def future_changed(draw: Draw) -> tuple[Case, ...]:
    base = causal(draw)
    q, k, v, phi = base.args
    later = torch.arange(draw["n"])[:, None] > draw["n"] // 2
    return base, base.with_args(q, torch.where(later, k + 1.0, k), torch.where(later, v - 2.0, v), phi)


def query_changed(draw: Draw) -> tuple[Case, ...]:
    base = whole(draw)
    q = base.args[0].clone()
    q[0] = q[0].flip(0) * 2.0
    return base, base.with_args(q, *base.args[1:])


def below_a_table(sizes: Mapping[str, int]) -> int:
    return sizes["n"] * sizes["n"] - 1


SIZES = {"n": 7, "d": 3, "m": 5}

TRIALS = (
    Trial("all positions", whole, SIZES, variants=True),
    Trial("causal", causal, SIZES, variants=True),
    Trial("more features than dimensions", split_features, {**SIZES, "n": 5}),
    Trial("causal, more features than dimensions", split_causal, {**SIZES, "m": 2}),
    Trial("another feature map", exponential, {"n": 5, "d": 2, "m": 3}),
    Trial("all sizes alike", whole, {"n": 5, "d": 5, "m": 5}),
    Trial("causal, all sizes alike", causal, {"n": 5, "d": 5, "m": 5}),
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
        future_changed,
        SIZES,
        says="with causal=True, later keys and values were changed: earlier rows may not move.",
    ),
    Probe(
        "a query stands alone",
        query_changed,
        SIZES,
        says="one query was changed: the other rows may not move.",
    ),
)
