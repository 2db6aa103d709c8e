"""What `encoder-layer` and `decoder-block` share: weights, our own block, and dropout's probes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.attention.visibility import Visibility
from regard.checking.trials import Case, Draw, Probe
from regard.layers.block import Block, BlockConfig

SIZES = {"batch": 2, "position": 5, "head": 3, "head_dim": 2, "ff_dim": 7}


# Our names of the parts, for those of the exercise.
OURS = {
    "W_q": "attention.query",
    "W_k": "attention.key",
    "W_v": "attention.value",
    "W_o": "attention.out",
    "linear1": "ff.up",
    "linear2": "ff.down",
    "norm1": "attention_norm",
    "norm2": "ff_norm",
}


def our_block(case: Case, visible: Visibility, *, causal: bool, norm_first: bool, activation: str) -> Tensor:
    """Our own block with the case's weights."""
    width, n_head, ff_dim, _ = case.init
    config = BlockConfig(
        width, n_head, ff_dim, norm_first=norm_first, activation=activation, attention_bias=False
    )
    block = Block(config, causal=causal).double().eval()
    weights = {}
    for name, value in case.weights.items():
        part, kind = name.split(".")
        weights[f"{OURS[part]}.{kind}"] = value
    out: Tensor = torch.func.functional_call(block, weights, (case.args[0],), {"visible": visible})
    return out


def block(draw: Draw, *args: Any, dropout: float = 0.0, train: bool = False, **kwargs: Any) -> Case:
    """A case with these arguments, and all weights."""
    width, ff_dim = draw["head"] * draw["head_dim"], draw["ff_dim"]
    # Twice the usual size, so that residual and attention are of one order and the weights are not flat.
    weights = {f"W_{name}.weight": 2 * draw.weight(width, width) for name in "qkvo"}
    weights |= {
        "linear1.weight": draw.weight(ff_dim, width),
        "linear1.bias": draw.normal(ff_dim, scale=0.5),
        "linear2.weight": draw.weight(width, ff_dim),
        "linear2.bias": draw.normal(width, scale=0.5),
    }
    for norm in ("norm1", "norm2"):
        weights[f"{norm}.weight"] = draw.normal(width, scale=0.3, mean=1.0)
        weights[f"{norm}.bias"] = draw.normal(width, scale=0.5)
    return Case(args, kwargs, init=(width, draw["head"], ff_dim, dropout), weights=weights, train=train)


def inputs(draw: Draw) -> Tensor:
    return draw.normal("batch", "position", draw["head"] * draw["head_dim"])


def dropped(draw: Draw) -> tuple[Case, ...]:
    """The same call twice in train mode, with strong dropout."""
    case = block(draw, inputs(draw), dropout=0.5, train=True)
    return case, case


def silent_part(*names: str) -> Callable[[Draw], tuple[Case, ...]]:
    """The same call twice in train mode, with one sublayer that gives 0: the other must drop something."""

    def make(draw: Draw) -> tuple[Case, ...]:
        case = block(draw, inputs(draw), dropout=0.5, train=True)
        weights = dict(case.weights)
        for name in names:
            weights[name] = torch.zeros_like(weights[name])
        case = replace(case, weights=weights)
        return case, case

    return make


def differ(results: list[Any]) -> str | None:
    if not torch.allclose(results[0].double(), results[1].double(), atol=1e-6):
        return None
    return "in train mode with dropout 0.5 two calls must not give the same."


def agree(results: list[Any]) -> str | None:
    if torch.allclose(results[0].double(), results[1].double(), atol=1e-5):
        return None
    return "more than a sublayer's result is dropped: where both give 0, two calls must give the same."


DROPOUT_PROBES = (
    Probe("dropout is on in train mode", dropped, SIZES, differ, kind="train mode"),
    Probe(
        "dropout after the attention",
        silent_part("linear2.weight", "linear2.bias"),
        SIZES,
        differ,
        kind="train mode",
        says="the feed-forward part gives 0 here: the attention's result must be dropped.",
    ),
    Probe(
        "dropout after the feed-forward part",
        silent_part("W_o.weight"),
        SIZES,
        differ,
        kind="train mode",
        says="the attention gives 0 here: the feed-forward part's result must be dropped.",
    ),
    Probe(
        "dropout leaves the residual alone",
        silent_part("W_o.weight", "linear2.weight", "linear2.bias"),
        SIZES,
        agree,
        kind="train mode",
    ),
)


def neighbour_changed(make: Callable[[Draw], Case]) -> Callable[[Draw], tuple[Case, ...]]:
    def changed(draw: Draw) -> tuple[Case, ...]:
        base = make(draw)
        x = base.args[0].clone()
        x[0] = x[0].flip(-1) * 2
        return base, base.with_args(x, *base.args[1:])

    return changed
