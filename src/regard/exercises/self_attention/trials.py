"""Reference, calls and probes of `self-attention`."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Probe, Trial, changed, neighbour_probe
from regard.exercises.shared import attention
from regard.exercises.shared.attention import Layer
from regard.exercises.shared.lengths import large_scores


@dataclass(frozen=True)
class Choices(attention.Choices):
    """Attention of one head, and what a sequence is."""

    sequences: str = "one by one"


def reference(case: Case, **choices: str) -> Tensor:
    """One head without an output layer."""
    c, (x,) = Choices(**choices), case.args
    given = x
    if c.sequences == "across the batch":
        x = x.transpose(0, 1)
    elif c.sequences == "as one":
        x = x.reshape(1, -1, x.shape[-1])
    layer = Layer(case.weights, 1, ("q", "k", "v", "none"))

    def hidden(scores: Tensor) -> Tensor | None:
        if c.causal == "hides the diagonal":
            return torch.eye(x.shape[1], dtype=torch.bool)
        return None

    out = layer.heads(c, x, x, x, hidden)[0][:, 0]
    if c.sequences == "across the batch":
        out = out.transpose(0, 1)
    out = out.reshape(*given.shape[:2], -1)
    if c.plus == "the mean over positions":
        return out.mean(1, keepdim=True).expand_as(out)
    parts = {"the input": "", "projected values": "v", "projected queries": "q"}
    if c.plus in parts:
        name = parts[c.plus]
        more = layer.project(given, name, c) if name else given
        if more.shape != out.shape:
            raise ValueError("the input is as wide as the output")
        return out + more
    return out


def attending(draw: Draw) -> Case:
    weights = {f"{name}.weight": draw.weight("hidden", "input") * 1.5 for name in "qkv"}
    weights |= {f"{name}.bias": draw.normal("hidden", scale=0.7) for name in "qkv"}
    return Case(
        (draw.normal("batch", "seq", "input"),), init=(draw["input"], draw["hidden"]), weights=weights
    )


def whole_numbers(draw: Draw) -> Case:
    """A scale of 2, too: the scores are exact in float32, and exp of them is infinite."""
    case = attending(Draw({**draw.sizes, "hidden": 4}, 1))
    for x in (*case.args, *(case.weights[f"{name}.{part}"] for name in "qk" for part in ("weight", "bias"))):
        x.copy_(draw.integers(-4, 4, *x.shape))
    return case


def follows_the_order(results: list[Tensor]) -> str | None:
    if torch.allclose(results[0].flip(1), results[1], atol=1e-4):
        return None
    return "the positions were turned round, and the outputs are not the same ones turned round."


SIZES = {"batch": 2, "seq": 7, "input": 3, "hidden": 5}

TRIALS = (
    Trial("several sequences", attending, SIZES, variants=True),
    Trial("hidden smaller than the input", attending, {**SIZES, "input": 11, "hidden": 3}, variants=True),
    Trial("batch of one", attending, {**SIZES, "batch": 1}),
    Trial("one position", attending, {**SIZES, "seq": 1}),
    Trial("as many sequences as positions", attending, {**SIZES, "batch": 5, "seq": 5}),
    Trial("all sizes alike", attending, dict.fromkeys(SIZES, 3)),
    large_scores(whole_numbers, SIZES),
    Trial(
        "train mode",
        lambda draw: replace(attending(draw), train=True),
        SIZES,
        kind="train mode",
        says="There is no dropout here.",
    ),
)

PROBES = (
    neighbour_probe(attending, SIZES),
    Probe(
        "order follows the input",
        changed(attending, lambda case, draw: case.args[0].copy_(case.args[0].flip(1))),
        SIZES,
        follows_the_order,
    ),
    Probe(
        "every position is seen",
        changed(attending, lambda case, draw: case.args[0][:, -1].mul_(-1.5)),
        SIZES,
        says="the last position was changed: every output of its sequence must move.",
    ),
)
