"""What `encoder-layer` and `decoder-block` share: weights, reference, and dropout's probes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.checking.trials import Case, Draw, Probe, Trial
from regard.exercises.shared import attention
from regard.exercises.shared.attention import Hidden, Layer, computed

SIZES = {"batch": 2, "position": 5, "head": 3, "head_dim": 2, "ff_dim": 7}


@dataclass(frozen=True)
class Choices(attention.Choices):
    """Attention, and the decisions of a block around it."""

    norm: str = "residual(part(norm(seen)))"
    norms: str = "(x - mean) / (var + 1e-5).sqrt() * weight + bias"
    norm1_by: str = "norm1"
    norm2_by: str = "norm2"
    residual1: str = "x + out"
    residual2: str = "x + out"
    normed: str = "qkv"
    gelu: str = "exact"
    activation: str = "gelu(x)"
    feed: str = "linear2(act(linear1(x)))"
    parts: str = "feed(attend(x))"
    end: str = "x"


class Reference:
    """A block with the weights of a case."""

    def __init__(self, case: Case, c: Choices, hidden: Hidden) -> None:
        self.c, self.weights, self.hidden = c, case.weights, hidden
        self.layer = Layer(case.weights, case.init[1])
        self.total = torch.empty(0)  # the last residual's sum, before any norm

    def norm(self, x: Tensor, name: str) -> Tensor:
        """A layer norm."""
        if name == "none":
            return x
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        mean, var = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
        return computed(self.c.norms, x=x, mean=mean, var=var, weight=weight, bias=bias)

    def attention(self, x: Tensor, normed: Tensor) -> Tensor:
        """The attention's result."""
        q, k, v = (normed if name in self.c.normed else x for name in "qkv")
        return self.layer(self.c, q, k, v, self.hidden)[0]

    def feed_forward(self, x: Tensor) -> Tensor:
        """The feed-forward part's result."""
        gelu = partial(F.gelu, approximate="tanh" if self.c.gelu == "tanh" else "none")
        layers = {name: partial(self.layer.project, name=name, c=self.c) for name in ("linear1", "linear2")}
        bias1, bias2 = self.weights["linear1.bias"], self.weights["linear2.bias"]

        def act(x: Tensor) -> Tensor:
            return computed(self.c.activation, x=x, gelu=gelu)

        return computed(self.c.feed, x=x, act=act, bias1=bias1, bias2=bias2, **layers)

    def half(self, x: Tensor, seen: Tensor | None = None, *, attends: bool, number: int) -> Tensor:
        """One part with its norm and its residual; `seen` is what it works on."""
        seen = normed = x if seen is None else seen

        def part(inside: Tensor) -> Tensor:
            nonlocal normed
            normed = inside
            return self.attention(seen, inside) if attends else self.feed_forward(inside)

        def residual(out: Tensor) -> Tensor:
            sums = {"x": x, "normed": normed, "start": self.start, "total": self.total, "norm": self.norm}
            self.total = computed(getattr(self.c, f"residual{number}"), out=out, **sums)
            return self.total

        norm = partial(self.norm, name=getattr(self.c, f"norm{number}_by"))
        return computed(self.c.norm, x=x, seen=seen, norm=norm, part=part, residual=residual, attends=attends)

    def __call__(self, x: Tensor) -> Tensor:
        """The block's result."""
        self.start = x
        parts = {
            "attend": partial(self.half, attends=True, number=1),
            "feed": partial(self.half, attends=False, number=2),
            "attend_again": partial(self.half, attends=True, number=2),
        }
        out = computed(self.c.parts, x=x, total=lambda: self.total, **parts)
        return computed(self.c.end, x=out, norm=self.norm)


def block(draw: Draw, lengths: Tensor | None = None, *, dropout: float = 0.0, train: bool = False) -> Case:
    """A block with random weights, called with random positions and, if there are any, lengths."""
    width, ff_dim = draw["head"] * draw["head_dim"], draw["ff_dim"]
    # Twice the usual size, so that residual and attention are of one order and the weights are not flat.
    weights = {f"W_{name}.weight": 2 * draw.weight(width, width) for name in "qkvo"}
    for name, out, into in (("linear1", ff_dim, width), ("linear2", width, ff_dim)):
        weights |= {f"{name}.weight": draw.weight(out, into), f"{name}.bias": draw.normal(out, scale=0.5)}
    for norm in ("norm1", "norm2"):
        weights[f"{norm}.weight"] = draw.normal(width, scale=0.3, mean=1.0)
        weights[f"{norm}.bias"] = draw.normal(width, scale=0.5)
    options = {} if lengths is None else {"valid_lens": lengths}
    init = (width, draw["head"], ff_dim, dropout)
    return Case((draw.normal("batch", "position", width),), options, init=init, weights=weights, train=train)


DIFFER = "in train mode with dropout 0.5 two calls must not give the same."
AGREE = "more than a sublayer's result is dropped: where both give 0, two calls must give the same."
NO_FEED = ("linear2.weight", "linear2.bias")


def dropout_probe(name: str, *silent: str, alike: bool = False, says: str = "") -> Probe:
    """The same call twice in train mode with strong dropout, where weights that are `silent` are 0."""

    def twice(draw: Draw) -> tuple[Case, ...]:
        case = block(draw, dropout=0.5, train=True)
        for weight in silent:
            case.weights[weight].zero_()
        return case, case

    def judge(results: list[Any]) -> str | None:
        same = torch.allclose(results[0].double(), results[1].double(), atol=1e-5)
        return None if same == alike else AGREE if alike else DIFFER

    return Probe(name, twice, SIZES, judge, kind="train mode", says=says)


MODES = (
    Trial("train mode without dropout", partial(block, train=True), SIZES, kind="train mode"),
    Trial("eval mode with dropout", partial(block, dropout=0.5), SIZES, kind="train mode"),
)
DROPOUT_PROBES = (
    dropout_probe("dropout is on in train mode"),
    dropout_probe("dropout after the attention", *NO_FEED, says="the feed-forward part gives 0 here."),
    dropout_probe("dropout after the feed-forward part", "W_o.weight", says="the attention gives 0 here."),
    dropout_probe("dropout leaves the residual alone", "W_o.weight", *NO_FEED, alike=True),
)
