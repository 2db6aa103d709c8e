"""Reference, calls and probes of `multi-head-self-attention`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.checking.trials import ANYTHING, Case, Draw, Impossible, Probe, Trial
from regard.exercises.shared import attention
from regard.exercises.shared.attention import Layer, future
from regard.exercises.shared.lengths import DROPOUT, drops_something, drops_weights


@dataclass(frozen=True)
class Choices(attention.Choices):
    """Attention, and what is returned beside the output."""

    order: str = "sequence by sequence"
    returned: str = "before dropout"
    attention: str = "where asked for"


def reference(case: Case, **choices: str) -> Tensor | tuple[Tensor, Tensor]:
    """The output, and the attention where it is asked for; with all weights dropped, any output will do."""
    c, (x,) = Choices(**choices), case.args
    causal = bool(case.init_kwargs.get("causal", False))
    layer = Layer(case.weights, case.init[2], ("q", "k", "v", "mix"))
    more = replace(c, plus="nothing") if c.plus == "projected values" else c
    out, weights, scores = layer(more, x, x, x, lambda scores: future(scores, causal, c))
    if c.plus == "projected values":
        out = out + layer.project(x, "v", c)
    dropped = case.train and "dropout" in case.init_kwargs
    if dropped:  # by chance, or everything, where a dropout written by hand divides 0 by 0
        out = torch.full_like(out, ANYTHING)
    asked = bool(case.kwargs.get("return_attention"))
    if c.attention == "never" or not (asked or c.attention == "always"):
        return out
    if dropped and c.returned == "after dropout":
        weights = torch.zeros_like(weights)
    if c.attention == "averaged":
        return out, weights.mean(1)
    maps = scores if c.attention == "scores" else weights
    if c.attention == "four axes":
        return out, maps
    if c.order == "head by head":
        maps = maps.transpose(0, 1)
    return out, maps.flatten(0, 1)


def attending(draw: Draw, **options: Any) -> Case:
    """A layer with random weights, called with random positions."""
    hidden = draw["head"] * draw["head_dim"]
    sizes: dict[str, Any] = {"q": "input", "k": "input", "v": "input", "mix": hidden}
    weights = {f"{name}.weight": draw.weight(hidden, size) * 1.5 for name, size in sizes.items()}
    weights |= {f"{name}.bias": draw.normal(hidden, scale=0.7) for name in sizes}
    x = draw.normal("batch", "seq", "input")
    return Case((x,), init=(draw["input"], hidden, draw["head"]), init_kwargs=options, weights=weights)


def plain(draw: Draw) -> Case:
    return attending(draw)


def causal(draw: Draw) -> Case:
    return attending(draw, causal=True)


def with_attention(draw: Draw) -> Case:
    return replace(attending(draw), kwargs={"return_attention": True})


def causal_with_attention(draw: Draw) -> Case:
    return replace(attending(draw, causal=True), kwargs={"return_attention": True})


def evaluated(draw: Draw) -> Case:
    return replace(attending(draw, causal=True, dropout=0.7), kwargs={"return_attention": True})


def all_dropped(draw: Draw) -> Case:
    return replace(attending(draw, dropout=1.0), kwargs={"return_attention": True}, train=True)


def trained(draw: Draw) -> Case:
    return replace(attending(draw), train=True)


def large_scores(draw: Draw) -> Case:
    """Whole numbers, and a scale of 2: the scores are exact in float32, and exp of them is infinite."""
    # Not causal: a maximum over hidden keys too, with these scores, leaves nothing of the visible ones.
    case = attending(Draw({**draw.sizes, "head_dim": 4}, 1))
    for name in "qk":
        for part in ("weight", "bias"):
            weight = case.weights[f"{name}.{part}"]
            weight.copy_(draw.integers(-2, 2, *weight.shape))
    return case.with_args(draw.integers(-3, 3, "batch", "seq", "input").float())


def indivisible(draw: Draw) -> Case:
    case = attending(draw)
    hidden = case.init[1] + 1
    if hidden % draw["head"] == 0:
        raise Impossible
    return replace(case, init=(draw["input"], hidden, draw["head"]), weights={})


def dropped(draw: Draw) -> tuple[Case, ...]:
    """One-hot positions, values that hold them twice, an idle mix: the output is the dropped weights."""
    seq, n_head = draw["seq"], draw["head"]
    hidden = 2 * seq * n_head
    weights = {f"{name}.weight": draw.weight(hidden, seq) * 4 for name in "qk"}
    weights |= {"v.weight": torch.eye(seq).repeat(2 * n_head, 1), "mix.weight": torch.eye(hidden)}
    weights |= {f"{name}.bias": torch.zeros(hidden) for name in ("q", "k", "v", "mix")}
    x = torch.eye(seq).expand(draw["batch"], -1, -1).contiguous()
    trained = Case(
        (x,), init=(seq, hidden, n_head), init_kwargs={"dropout": DROPOUT}, weights=weights, train=True
    )
    return trained, replace(trained, train=False)


def future_changed(draw: Draw) -> tuple[Case, ...]:
    base = causal_with_attention(draw)
    x = base.args[0].clone()
    x[:, draw["seq"] // 2 :] *= -1.5
    return base, base.with_args(x)


def neighbour_changed(draw: Draw) -> tuple[Case, ...]:
    base = attending(draw)
    x = base.args[0].clone()
    x[0] += 1.0
    return base, base.with_args(x)


SIZES = {"batch": 2, "seq": 7, "input": 11, "head": 3, "head_dim": 5}

TRIALS = (
    Trial("every position visible", plain, SIZES, variants=True),
    Trial("causal", causal, SIZES, variants=True),
    Trial("with its attention", with_attention, SIZES, variants=True),
    Trial("causal, with its attention", causal_with_attention, SIZES),
    Trial("batch of one", with_attention, {**SIZES, "batch": 1}),
    Trial("as many sequences as heads", causal_with_attention, {**SIZES, "batch": 3}),
    Trial("one head", with_attention, {**SIZES, "head": 1}),
    Trial("heads of one number", with_attention, {**SIZES, "head_dim": 1, "head": 5}),
    Trial("a long sequence", causal, {**SIZES, "batch": 1, "seq": 41}, grad=False),
    Trial("one position", causal, {**SIZES, "seq": 1}),
    Trial("all sizes alike", causal_with_attention, dict.fromkeys(SIZES, 3)),
    Trial(
        "dropout in eval mode",
        evaluated,
        SIZES,
        kind="train mode",
        says="In eval mode dropout does nothing.",
    ),
    Trial(
        "train mode without dropout",
        trained,
        SIZES,
        kind="train mode",
        says="The default is dropout=0.",
    ),
    Trial(
        "large scores",
        large_scores,
        SIZES,
        grad=False,
        kind="fragile",
        says="exp(200) is infinite: subtract the row's maximum first, as torch.softmax does.",
    ),
    Trial(
        "weights in train mode",
        all_dropped,
        SIZES,
        grad=False,
        kind="train mode",
        says="With dropout 1 the weights before dropout are what they were.",
    ),
    Trial("heads that do not divide", indivisible, SIZES, raises=("ValueError",)),
)

PROBES = (
    Probe(
        "the future has no say",
        future_changed,
        SIZES,
        says="positions 3 to 6 were changed: with causal=True, those before them may not move.",
    ),
    Probe(
        "a neighbour has no say",
        neighbour_changed,
        {**SIZES, "batch": 3},
        says="sequence 0 was changed: the others may not move.",
    ),
    Probe(
        "dropout in train mode",
        dropped,
        {"batch": 2, "seq": 7, "head": 3},
        drops_something,
        kind="train mode",
    ),
    Probe(
        "dropout drops weights",
        dropped,
        {"batch": 2, "seq": 7, "head": 3},
        partial(drops_weights, n_head=3),
        kind="train mode",
    ),
)
