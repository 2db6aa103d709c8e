"""Reference, calls and probes of `multi-head-self-attention`."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.checking.trials import ANYTHING, Case, Draw, Impossible, Trial, formula
from regard.exercises.shared.attention import Choices, Layer, future
from regard.exercises.shared.given import causal_probes
from regard.exercises.shared.lengths import (
    DROPOUT,
    TRAINING,
    dropout_probe,
    edges,
    evaluated,
    large_scores,
    weights_in_training,
)

NAMES = ("q", "k", "v", "mix")


def reference(
    case: Case,
    *,
    returned: str = "weights",
    attention: str = "weights.flatten(0, 1)",
    pair: str = "asked",
    **choices: str,
) -> Tensor | tuple[Tensor, Tensor]:
    """The output, and the attention where it is asked for; with all weights dropped, any output will do."""
    c, (x,) = Choices(**choices), case.args
    hidden = partial(future, asked=bool(case.init_kwargs.get("causal", False)), c=c)
    out, weights, scores = Layer(case.weights, case.init[2], NAMES)(c, x, x, x, hidden)
    if case.train and "dropout" in case.init_kwargs:
        # By chance, or everything, where a dropout written by hand divides 0 by 0.
        out, weights = torch.full_like(out, ANYTHING), formula(returned, weights=weights)
    if not formula(pair, asked=bool(case.kwargs.get("return_attention"))):
        return out
    later = hidden(scores)
    seen = scores if later is None else scores.masked_fill(later, -torch.inf)
    return out, formula(attention, weights=weights, scores=scores, seen=seen)


def attending(
    draw: Draw, *, maps: bool = False, train: bool = False, scale: float = 1.0, **options: Any
) -> Case:
    """A layer with random weights, called with random positions; with `maps` it is asked for its weights."""
    hidden = draw["head"] * draw["head_dim"]
    weights = {f"{name}.bias": draw.normal(hidden, scale=0.7) for name in NAMES}
    for name in NAMES:
        weights[f"{name}.weight"] = draw.weight(hidden, hidden if name == "mix" else "input") * 1.5
    x, asked = (
        draw.normal("batch", "position", "input", scale=scale),
        {"return_attention": True} if maps else {},
    )
    return Case((x,), asked, "", (draw["input"], hidden, draw["head"]), options, weights, train)


def indivisible(draw: Draw) -> Case:
    case = attending(draw)
    hidden = case.init[1] + 1
    if hidden % draw["head"] == 0:
        raise Impossible
    return replace(case, init=(draw["input"], hidden, draw["head"]), weights={})


def dropped(draw: Draw) -> Case:
    """One-hot positions, values that hold them twice, an idle mix: the output is the dropped weights."""
    case, one_hot = attending(draw, train=True, dropout=DROPOUT), torch.eye(draw["position"])
    idle = {"v.weight": one_hot.repeat(2 * draw["head"], 1), "mix.weight": torch.eye(case.init[1])}
    idle |= {f"{name}.bias": torch.zeros(case.init[1]) for name in NAMES}
    x = one_hot.expand(draw["batch"], -1, -1).contiguous()
    return replace(case, args=(x,), weights={**case.weights, **idle})


causal = partial(attending, causal=True)
with_maps = partial(attending, maps=True)
causal_with_maps = partial(attending, maps=True, causal=True)
untrained = partial(attending, train=True)
SIZES = {"batch": 2, "position": 7, "input": 11, "head": 3, "head_dim": 5}
DEFAULT = "The default is dropout=0."

TRIALS = (
    Trial("every position visible", attending, SIZES, variants=True),
    Trial("causal", causal, SIZES, variants=True),
    Trial("with its attention", with_maps, SIZES, variants=True),
    Trial("causal, with its attention", causal_with_maps, SIZES),
    *edges(causal_with_maps, SIZES),
    Trial("heads of one number", with_maps, {**SIZES, "head_dim": 1, "head": 5}),
    Trial("a long sequence", causal, {**SIZES, "batch": 1, "position": 41}, grad=False),
    Trial("all sizes alike", causal_with_maps, dict.fromkeys(SIZES, 3)),
    evaluated(partial(causal_with_maps, dropout=0.7), SIZES),
    Trial("train mode without dropout", untrained, SIZES, kind=TRAINING, says=DEFAULT),
    # Not causal: a maximum over hidden keys too, with these scores, leaves nothing of the visible ones.
    large_scores(partial(attending, scale=20.0), SIZES),
    weights_in_training(partial(with_maps, dropout=1.0, train=True), SIZES),
    Trial("heads that do not divide", indivisible, SIZES, raises=("ValueError",)),
)

PROBES = (
    *causal_probes(causal_with_maps, SIZES),
    dropout_probe(dropped, {**SIZES, "input": 7, "head_dim": 14}, n_head=3),
)
