"""What `encoder-layer` and `decoder-block` share: weights, our own block, mistakes, and dropout's probes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.attention.visibility import Visibility
from regard.exercises.multi_head_parts import PLAIN
from regard.exercises.spec import Case, Draw, Mistake, Probe
from regard.layers.block import Block, BlockConfig

SIZES = {"batch": 2, "position": 5, "head": 3, "head_dim": 2, "ff_dim": 7}

LAYERS = """
    def __init__(self, d_model, num_heads, d_ff, dropout):
        super().__init__()
        self.num_heads = num_heads
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)
        self.linear1 = nn.Linear(d_model, d_ff)
        self.linear2 = nn.Linear(d_ff, d_model)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)
"""

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


# Lines that the first right variants of both have.
ADD_ATTENDED = "x = x + self.dropout(attended)"
ADD_FED = "x = x + self.dropout(fed)"

MISTAKES = (
    *PLAIN,
    Mistake(
        "the first residual is missing",
        (
            "The input reaches the output through attention alone.",
            "Look at what follows the attention.",
            "The attention's result replaces x, where it should be added to it.",
            "x = x + attention.",
        ),
        edits=((ADD_ATTENDED, "x = self.dropout(attended)"),),
    ),
    Mistake(
        "the second residual is missing",
        (
            "What the attention gave reaches the output through the feed-forward part alone.",
            "Look at what follows the feed-forward part.",
            "Its result replaces x, where it should be added to it.",
            "x = x + feed-forward.",
        ),
        edits=((ADD_FED, "x = self.dropout(fed)"),),
    ),
    Mistake(
        "the second residual adds the block's input",
        (
            "The attention reaches the output through the feed-forward part alone.",
            "Look at what the feed-forward result is added to.",
            "It is added to the input of the whole block, from before the attention.",
            "Add it to what the attention's residual gave.",
        ),
        edits=(
            (ADD_ATTENDED, "first = x\n        " + ADD_ATTENDED),
            (ADD_FED, "x = first + self.dropout(fed)"),
        ),
    ),
    Mistake(
        "one norm used twice",
        (
            "norm2 has no effect.",
            "Look at the two norms.",
            "norm1 stands in both places.",
            "The feed-forward part has a norm of its own.",
        ),
        edits=(("self.norm2(x)", "self.norm1(x)"),),
    ),
    Mistake(
        "the two norms are swapped",
        (
            "Shapes are right, numbers are not.",
            "Look at the two norms.",
            "norm1 belongs to the attention, norm2 to the feed-forward part.",
            "Swap them.",
        ),
        edits=(("self.norm2(x)", "self.norm1 (x)"), ("self.norm1(x)", "self.norm2(x)")),
    ),
    Mistake(
        "no activation",
        (
            "The feed-forward part is linear.",
            "Look at what lies between linear1 and linear2.",
            "Two linear maps in a row are one.",
            "Put the activation between them.",
        ),
        edits=(("hidden = activation(self.linear1(", "hidden = (self.linear1("),),
    ),
    Mistake(
        "the activation comes after the second linear layer",
        (
            "The feed-forward part adds no negative numbers.",
            "Look at the order of linear1, linear2 and the activation.",
            "The activation is applied to the result of linear2.",
            "linear1, activation, linear2.",
        ),
        edits=(
            ("hidden = activation(self.linear1(", "hidden = (self.linear1("),
            ("fed = self.linear2(hidden)", "fed = activation(self.linear2(hidden))"),
        ),
    ),
    Mistake(
        "the activation comes twice",
        (
            "The feed-forward part adds no negative numbers.",
            "Look at the order of linear1, linear2 and the activation.",
            "The activation is applied to the result of linear2 too.",
            "linear1, activation, linear2.",
        ),
        edits=(("fed = self.linear2(hidden)", "fed = activation(self.linear2(hidden))"),),
    ),
    Mistake(
        "the output projection is left out",
        (
            "W_o has no effect on the result.",
            "Look at the end of the attention.",
            "The joined heads are used as they are.",
            "Give them to W_o.",
        ),
        edits=(("attended = self.W_o(joined)", "attended = joined"),),
    ),
    Mistake(
        "`W_q` and `W_k` swapped",
        (
            "The weights are wrong though every shape is right.",
            "Look at which layer makes the queries.",
            "The queries come from W_k and the keys from W_q.",
            "Swap them.",
        ),
        edits=(
            ("q = self.split_heads(self.W_q(", "q = self.split_heads(self.W_k("),
            ("k = self.split_heads(self.W_k(", "k = self.split_heads(self.W_q("),
        ),
    ),
    Mistake(
        "no dropout in train mode",
        (
            "The numbers are right, but nothing is dropped in training.",
            "Look for the dropout layer in forward.",
            "It is made and never used.",
            "Apply it to each sublayer's result before it is added.",
        ),
        edits=((ADD_ATTENDED, "x = x + attended"), (ADD_FED, "x = x + fed")),
    ),
    Mistake(
        "dropout in eval mode too",
        (
            "Right with dropout 0, random with any other, even after eval().",
            "Look at how the dropout is called.",
            "F.dropout drops unless it is told training=self.training.",
            "Use nn.Dropout, or pass training=self.training.",
        ),
        edits=((ADD_ATTENDED, "x = x + nn.functional.dropout(attended, self.dropout.p)"),),
    ),
    Mistake(
        "dropout on the residual",
        (
            "The numbers are right in eval mode; in training the residual itself is dropped.",
            "Look at what the dropout is applied to.",
            "It is applied to the sum of x and the sublayer.",
            "Drop the sublayer's result, then add x.",
        ),
        edits=((ADD_ATTENDED, "x = self.dropout(x + attended)"), (ADD_FED, "x = self.dropout(x + fed)")),
    ),
    Mistake(
        "the gradient is cut at the attention",
        (
            "The numbers are right, but no gradient reaches the attention's weights.",
            "Look for detach, .data or no_grad.",
            "A detached result is a constant to autograd.",
            "Use the attention's result as it is.",
        ),
        edits=((ADD_ATTENDED, "x = x + self.dropout(attended.detach())"),),
    ),
)
