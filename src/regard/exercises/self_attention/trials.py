"""Reference, calls and probes of `self-attention`."""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Probe, Trial, changed, neighbour_probe
from regard.exercises.shared.attention import Choices, Layer
from regard.exercises.shared.lengths import TRAINING, edges, large_scores


def reference(case: Case, *, sequences: str = "one by one", **choices: str) -> Tensor:
    """One head without an output layer."""
    c, (x,) = Choices(**{"out": "joined", **choices}), case.args
    across = sequences == "across the batch"
    seen = {"across the batch": x.transpose(0, 1), "as one": x.flatten(0, 1)[None]}.get(sequences, x)
    out = Layer(case.weights, 1, ("q", "k", "v", ""))(c, seen, seen, seen)[0]
    return (out.transpose(0, 1) if across else out).reshape(*x.shape[:2], -1)


def attending(draw: Draw, scale: float = 1.0) -> Case:
    weights = {f"{name}.weight": draw.weight("hidden", "input") * 1.5 for name in "qkv"}
    weights |= {f"{name}.bias": draw.normal("hidden", scale=0.7) for name in "qkv"}
    x = draw.normal("batch", "position", "input", scale=scale)
    return Case((x,), init=(draw["input"], draw["hidden"]), weights=weights)


def training(draw: Draw) -> Case:
    return replace(attending(draw), train=True)


def follows_the_order(results: list[Tensor]) -> str | None:
    if torch.allclose(results[0].flip(1), results[1], atol=1e-4):
        return None
    return "the positions were turned round, and the outputs are not the same ones turned round."


SIZES = {"batch": 2, "position": 7, "input": 3, "hidden": 5}

turned = changed(attending, lambda case, draw: case.args[0].copy_(case.args[0].flip(1)))
last = changed(attending, lambda case, draw: case.args[0][:, -1].mul_(-1.5))
SEEN = "the last position was changed: every output of its sequence must move."

TRIALS = (
    Trial("several sequences", attending, SIZES, variants=True),
    Trial("hidden smaller than the input", attending, {**SIZES, "input": 11, "hidden": 3}, variants=True),
    *edges(attending, SIZES),
    Trial("as many sequences as positions", attending, {**SIZES, "batch": 5, "position": 5}),
    Trial("all sizes alike", attending, dict.fromkeys(SIZES, 3)),
    large_scores(partial(attending, scale=30.0), SIZES),
    Trial("train mode", training, SIZES, kind=TRAINING, says="There is no dropout here."),
)

PROBES = (
    neighbour_probe(attending, SIZES),
    Probe("order follows the input", turned, SIZES, follows_the_order),
    Probe("every position is seen", last, SIZES, says=SEEN),
)
