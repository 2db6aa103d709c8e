"""What `encoder-layer` and `decoder-block` share: weights, reference, and dropout's probes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.checking.trials import Calls, Case, Draw, Probe, Trial
from regard.exercises.shared import attention
from regard.exercises.shared.attention import Layer

SIZES = {"batch": 2, "position": 5, "head": 3, "head_dim": 2, "ff_dim": 7}

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": F.gelu,
    "gelu by tanh": lambda x: F.gelu(x, approximate="tanh"),
    "tanh": torch.tanh,
    "silu": F.silu,
    "elu": F.elu,
    "leaky relu": F.leaky_relu,
    "relu squared": lambda x: torch.relu(x).square(),
    "gelu by sigmoid": lambda x: x * torch.sigmoid(1.702 * x),
    "sigmoid": torch.sigmoid,
    "none": lambda x: x,
}


@dataclass(frozen=True)
class Choices(attention.Choices):
    """Attention, and the decisions of a block around it."""

    norm: str = ""
    gelu: str = "exact"
    norms: str = "of layers"
    norm1_by: str = "norm1"
    norm2_by: str = "norm2"
    residual1: str = "x"
    residual2: str = "x"
    normed: str = "qkv"
    activation: str = ""
    activation_at: str = "between"
    second: str = "feed-forward"
    padding: str = "like all others"
    end: str = "as it is"


class Reference:
    """A block with the weights of a case."""

    def __init__(self, case: Case, c: Choices, hidden: Callable[[Tensor], Tensor | None]) -> None:
        self.c, self.weights, self.hidden = c, case.weights, hidden
        self.layer = Layer(case.weights, case.init[1])
        self.total = torch.empty(0)  # the last residual's sum, before any norm

    def normed(self, x: Tensor, name: str) -> Tensor:
        """A layer norm."""
        how = self.c.norms
        if name == "none" or how == "none":
            return x
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        axis = 1 if how == "over positions" else -1
        mean = x.mean(axis, keepdim=True)
        if how == "without the mean":
            centred, square = x, x.square().mean(-1, keepdim=True)
        else:
            centred, square = x - mean, x.var(axis, unbiased=how == "unbiased", keepdim=True)
        root = (
            square.sqrt() + 1e-6
            if how == "unbiased"
            else (square + (0.1 if how == "eps 0.1" else 1e-5)).sqrt()
        )
        return centred / root if how == "without weights" else centred / root * weight + bias

    def attend(self, x: Tensor, normed: Tensor) -> Tensor:
        """The attention's result."""
        q, k, v = (normed if name in self.c.normed else x for name in "qkv")
        return self.layer(self.c, q, k, v, self.hidden)[0]

    def feed(self, x: Tensor) -> Tensor:
        """The feed-forward part's result."""
        act = ACTIVATIONS[self.c.activation]
        biases = [
            None if self.c.bias == f"not of {name}" else self.weights[f"{name}.bias"]
            for name in ("linear1", "linear2")
        ]
        inside = F.linear(x, self.weights["linear1.weight"], biases[0])
        inside = inside if self.c.activation_at == "after linear2" else act(inside)
        out = F.linear(inside, self.weights["linear2.weight"], biases[1])
        return out if self.c.activation_at == "between" else act(out)

    def half(self, x: Tensor, part: str, norm: str, residual: str, given: Tensor, seen: Tensor) -> Tensor:
        """One part with its norm and its residual; `seen` is what it works on, `given` the block's input."""
        before = self.c.norm in ("before", "before and after", f"before the {part} alone")
        normed = self.normed(seen, norm) if before else seen
        out = self.attend(seen, normed) if part == "attention" else self.feed(normed)
        if self.c.norms in ("on the sublayers", f"on the {part}"):
            return x + self.normed(out, norm)
        bases = {
            "none": torch.zeros_like(x),
            "the input": given,
            "normed": normed,
            "the sum": self.total,
            "twice": 2 * x,
            "x and normed": x + normed,
        }
        self.total = bases.get(residual, x) + out
        normed_after = not before or self.c.norm == "before and after"
        return self.normed(self.total, norm) if normed_after else self.total

    def __call__(self, x: Tensor) -> Tensor:
        """The block's result."""
        c, given = self.c, x
        parts = ["attention", "feed-forward"]
        if c.second == "first":
            parts.reverse()
        if c.second == "attention":
            parts[1] = "attention"
        norms = {"attention": c.norm1_by, "feed-forward": c.norm2_by}
        x = self.half(x, parts[0], norms[parts[0]], c.residual1, given, x)
        if c.second == "left out":
            return x
        seen = {"given the input": given, "beside": given, "given the sum": self.total}.get(c.second, x)
        norm = c.norm2_by if c.second == "attention" else norms[parts[1]]
        x = self.half(x, parts[1], norm, c.residual2, given, seen)
        return x if c.end == "as it is" else self.normed(x, c.end)


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


def silent(*names: str) -> Calls:
    """The same call twice in train mode with strong dropout, where these weights are 0."""

    def make(draw: Draw) -> tuple[Case, ...]:
        case = block(draw, dropout=0.5, train=True)
        for name in names:
            case.weights[name].zero_()
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


def dropout_probe(name: str, *names: str, judge: Callable[[list[Any]], str | None], says: str = "") -> Probe:
    return Probe(name, silent(*names), SIZES, judge, kind="train mode", says=says)


NO_FEED = ("linear2.weight", "linear2.bias")
MODES = (
    Trial("train mode without dropout", partial(block, train=True), SIZES, kind="train mode"),
    Trial("eval mode with dropout", partial(block, dropout=0.5), SIZES, kind="train mode"),
)
DROPOUT_PROBES = (
    dropout_probe("dropout is on in train mode", judge=differ),
    dropout_probe(
        "dropout after the attention",
        *NO_FEED,
        judge=differ,
        says="the feed-forward part gives 0 here: the attention's result must be dropped.",
    ),
    dropout_probe(
        "dropout after the feed-forward part",
        "W_o.weight",
        judge=differ,
        says="the attention gives 0 here: the feed-forward part's result must be dropped.",
    ),
    dropout_probe("dropout leaves the residual alone", "W_o.weight", *NO_FEED, judge=agree),
)
