"""Reference, calls and probes of `multi-head-self-attention`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.checking.trials import ANYTHING, Case, Draw, Impossible, Probe, Trial, changed, neighbour_probe
from regard.exercises.shared import attention
from regard.exercises.shared.attention import Layer, future
from regard.exercises.shared.lengths import DROPOUT, dropout_probes, evaluated, large_scores


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
    hidden = future(scores, causal, c)
    if c.attention == "hidden scores" and hidden is not None:
        scores = scores.masked_fill(hidden, -torch.inf)
    maps = scores if "scores" in c.attention else weights
    if c.attention == "four axes":
        return out, maps
    if c.order == "head by head":
        maps = maps.transpose(0, 1)
    return out, maps.flatten(0, 1)


def attending(draw: Draw, *, maps: bool = False, train: bool = False, **options: Any) -> Case:
    """A layer with random weights, called with random positions; with `maps` it is asked for its weights."""
    hidden = draw["head"] * draw["head_dim"]
    sizes: dict[str, Any] = {"q": "input", "k": "input", "v": "input", "mix": hidden}
    weights = {f"{name}.weight": draw.weight(hidden, size) * 1.5 for name, size in sizes.items()}
    weights |= {f"{name}.bias": draw.normal(hidden, scale=0.7) for name in sizes}
    x, asked = draw.normal("batch", "seq", "input"), {"return_attention": True} if maps else {}
    return Case((x,), asked, "", (draw["input"], hidden, draw["head"]), options, weights, train)


def whole_numbers(draw: Draw) -> Case:
    """A scale of 2, too: the scores are exact in float32, and exp of them is infinite."""
    # Not causal: a maximum over hidden keys too, with these scores, leaves nothing of the visible ones.
    case = attending(Draw({**draw.sizes, "head_dim": 4}, 1))
    for x in (*case.args, *(case.weights[f"{name}.{part}"] for name in "qk" for part in ("weight", "bias"))):
        x.copy_(draw.integers(-3, 3, *x.shape))
    return case


def indivisible(draw: Draw) -> Case:
    case = attending(draw)
    hidden = case.init[1] + 1
    if hidden % draw["head"] == 0:
        raise Impossible
    return replace(case, init=(draw["input"], hidden, draw["head"]), weights={})


def dropped(draw: Draw) -> Case:
    """One-hot positions, values that hold them twice, an idle mix: the output is the dropped weights."""
    seq, n_head = draw["seq"], draw["head"]
    hidden = 2 * seq * n_head
    weights = {f"{name}.weight": draw.weight(hidden, seq) * 4 for name in "qk"}
    weights |= {"v.weight": torch.eye(seq).repeat(2 * n_head, 1), "mix.weight": torch.eye(hidden)}
    weights |= {f"{name}.bias": torch.zeros(hidden) for name in ("q", "k", "v", "mix")}
    x = torch.eye(seq).expand(draw["batch"], -1, -1).contiguous()
    return Case((x,), {}, "", (seq, hidden, n_head), {"dropout": DROPOUT}, weights, train=True)


causal = partial(attending, causal=True)
with_maps = partial(attending, maps=True)
causal_with_maps = partial(attending, maps=True, causal=True)
SIZES = {"batch": 2, "seq": 7, "input": 11, "head": 3, "head_dim": 5}

TRIALS = (
    Trial("every position visible", attending, SIZES, variants=True),
    Trial("causal", causal, SIZES, variants=True),
    Trial("with its attention", with_maps, SIZES, variants=True),
    Trial("causal, with its attention", causal_with_maps, SIZES),
    Trial("batch of one", with_maps, {**SIZES, "batch": 1}),
    Trial("as many sequences as heads", causal_with_maps, {**SIZES, "batch": 3}),
    Trial("one head", with_maps, {**SIZES, "head": 1}),
    Trial("heads of one number", with_maps, {**SIZES, "head_dim": 1, "head": 5}),
    Trial("a long sequence", causal, {**SIZES, "batch": 1, "seq": 41}, grad=False),
    Trial("one position", causal, {**SIZES, "seq": 1}),
    Trial("all sizes alike", causal_with_maps, dict.fromkeys(SIZES, 3)),
    evaluated(partial(causal_with_maps, dropout=0.7), SIZES),
    Trial(
        "train mode without dropout",
        partial(attending, train=True),
        SIZES,
        kind="train mode",
        says="The default is dropout=0.",
    ),
    large_scores(whole_numbers, SIZES),
    Trial(
        "weights in train mode",
        partial(with_maps, dropout=1.0, train=True),
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
        changed(causal_with_maps, lambda case, draw: case.args[0][:, draw["seq"] // 2 :].mul_(-1.5)),
        SIZES,
        says="positions 3 to 6 were changed: with causal=True, those before them may not move.",
    ),
    neighbour_probe(attending, SIZES),
    *dropout_probes(dropped, {"batch": 2, "seq": 7, "head": 3}, n_head=3),
)
