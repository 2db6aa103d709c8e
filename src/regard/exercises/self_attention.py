"""Exercise: self-attention with one head."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import linear

from regard.attention.softmax import attend
from regard.exercises.spec import (
    BIAS,
    Case,
    Convention,
    Draw,
    Exercise,
    Mistake,
    Probe,
    Right,
    Trial,
    left_out,
)

TASK = """
Self-attention with one head: every position looks at every position of its own sequence.

    output = softmax(q(x) k(x)^T / sqrt(hidden)) v(x)        softmax over the positions looked at

- `SelfAttention(input_size, hidden)` has three linear layers `q`, `k`, `v`, each from `input_size` to
  `hidden`, with bias.
- `forward(x)`: (batch, seq, input_size) -> (batch, seq, hidden).
"""

STARTER = '''import torch
from torch import nn


class SelfAttention(nn.Module):
    def __init__(self, input_size, hidden):
        super().__init__()
        raise NotImplementedError

    def forward(self, x):
        """(batch, seq, input_size) -> (batch, seq, hidden)."""
        raise NotImplementedError
'''

STEPS = """import math
import torch
from torch import nn

class SelfAttention(nn.Module):
    def __init__(self, input_size, hidden):
        super().__init__()
        self.q = nn.Linear(input_size, hidden)
        self.k = nn.Linear(input_size, hidden)
        self.v = nn.Linear(input_size, hidden)
        self.scale = math.sqrt(hidden)

    def forward(self, x):
        query = self.q(x)
        key = self.k(x)
        value = self.v(x)
        scores = torch.bmm(query, key.transpose(1, 2))
        scores = scores / self.scale
        weights = torch.softmax(scores, dim=-1)
        out = torch.bmm(weights, value)
        return out
"""

FUSED = """import torch
import torch.nn as nn
import torch.nn.functional as F

class SelfAttention(nn.Module):
    def __init__(self, input_size, hidden):
        super(SelfAttention, self).__init__()
        self.k = nn.Linear(input_size, hidden)
        self.q = nn.Linear(input_size, hidden)
        self.v = nn.Linear(input_size, hidden)

    def forward(self, x):
        return F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))
"""

EINSUM = """import torch
from torch import nn

class SelfAttention(nn.Module):
    def __init__(self, input_size, hidden):
        super().__init__()
        for name in "qkv":
            setattr(self, name, nn.LazyLinear(hidden))
        self.hidden = hidden

    def forward(self, x):
        scores = torch.einsum("bih,bjh->bij", self.q(x) * self.hidden ** -0.5, self.k(x))
        e = torch.exp(scores - scores.amax(dim=2, keepdim=True))
        return torch.einsum("bij,bjh->bih", e / e.sum(dim=2, keepdim=True), self.v(x))
"""

LOOPS = """import torch
from torch import nn
from torch.nn import functional as F

class SelfAttention(nn.Module):
    def __init__(self, input_size, hidden):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(input_size, hidden) for _ in range(3))

    def forward(self, x):
        outputs = []
        for sequence in x:
            K, V = self.k(sequence), self.v(sequence)
            rows = []
            for token in sequence:
                weights = F.softmax(K @ self.q(token) / K.shape[1] ** 0.5, dim=0)
                rows.append((weights[:, None] * V).sum(0))
            outputs.append(torch.stack(rows))
        return torch.stack(outputs)
"""


NO_BIASES = FUSED.replace("hidden)", "hidden, bias=False)", 4).replace(
    "input_size, hidden, bias=False):", "input_size, hidden):"
)


def reference(case: Case, *, bias: str = "used") -> Tensor:
    """Our own attention as one head."""
    (x,) = case.args
    used = {name: weight for name, weight in case.weights.items() if name not in left_out(bias)}
    q, k, v = (linear(x, used[f"{name}.weight"], used.get(f"{name}.bias"))[:, None] for name in "qkv")
    return attend(q, k, v).out[:, 0]


def attending(draw: Draw) -> Case:
    weights = {f"{name}.weight": draw.weight("hidden", "input") * 1.5 for name in "qkv"}
    weights |= {f"{name}.bias": draw.normal("hidden", scale=0.7) for name in "qkv"}
    return Case(
        (draw.normal("batch", "seq", "input"),), init=(draw["input"], draw["hidden"]), weights=weights
    )


def large_scores(draw: Draw) -> Case:
    """Whole numbers, and a scale of 2: the scores are exact in float32, and exp of them is infinite."""
    case = attending(Draw({**draw.sizes, "hidden": 4}, 1))
    for name in "qk":
        for part in ("weight", "bias"):
            weight = case.weights[f"{name}.{part}"]
            weight.copy_(draw.integers(-4, 4, *weight.shape))
    return case.with_args(draw.integers(-4, 4, "batch", "seq", "input").float())


def trained(draw: Draw) -> Case:
    return replace(attending(draw), train=True)


def neighbour_changed(draw: Draw) -> tuple[Case, ...]:
    base = attending(draw)
    x = base.args[0].clone()
    x[0] += 1.0
    return base, base.with_args(x)


def turned_round(draw: Draw) -> tuple[Case, ...]:
    base = attending(draw)
    return base, base.with_args(base.args[0].flip(1))


def follows_the_order(results: list[Tensor]) -> str | None:
    if torch.allclose(results[0].flip(1), results[1], atol=1e-4):
        return None
    return "the positions were turned round, and the outputs are not the same ones turned round."


def position_changed(draw: Draw) -> tuple[Case, ...]:
    base = attending(draw)
    x = base.args[0].clone()
    x[:, -1] *= -1.5
    return base, base.with_args(x)


SIZES = {"batch": 2, "seq": 7, "input": 3, "hidden": 5}
SCALE_PLACE = "Look at the number that the scores are divided by."

EXERCISE = Exercise(
    id="self-attention",
    title="Self-attention",
    names=("SelfAttention",),
    task=TASK,
    starter=STARTER,
    reference=reference,
    right=(
        Right("step by step", STEPS),
        Right("torch's fused attention", FUSED),
        Right("einsum, lazy layers, a softmax written out", EINSUM),
        Right("loops over sequences and positions", LOOPS),
        Right("layers without biases", NO_BIASES),
    ),
    conventions=(
        Convention(
            BIAS,
            {"used": "the layers have biases.", "without q k v": "your layers have no biases; ours have."},
        ),
    ),
    words={"": ("batch", "position", "hidden")},
    trials=(
        Trial("several sequences", attending, SIZES, variants=True),
        Trial("hidden smaller than the input", attending, {**SIZES, "input": 11, "hidden": 3}, variants=True),
        Trial("batch of one", attending, {**SIZES, "batch": 1}),
        Trial("one position", attending, {**SIZES, "seq": 1}),
        Trial("as many sequences as positions", attending, {**SIZES, "batch": 5, "seq": 5}),
        Trial("all sizes alike", attending, dict.fromkeys(SIZES, 3)),
        Trial(
            "large scores",
            large_scores,
            SIZES,
            grad=False,
            kind="fragile",
            says="exp(200) is infinite: subtract the row's maximum first, as torch.softmax does.",
        ),
        Trial("train mode", trained, SIZES, kind="train mode", says="There is no dropout here."),
    ),
    probes=(
        Probe(
            "a neighbour has no say",
            neighbour_changed,
            {**SIZES, "batch": 3},
            says="sequence 0 was changed: the others may not move.",
        ),
        Probe("order follows the input", turned_round, SIZES, follows_the_order),
        Probe(
            "every position is seen",
            position_changed,
            SIZES,
            says="the last position was changed: every output of its sequence must move.",
        ),
    ),
    hints=(
        "The output is not the mixture of values that the formula gives.",
        "Take one position: its query, its scores against all keys, their softmax, the mixture of values.",
        "Scores are divided by sqrt(hidden), and the softmax runs over the keys.",
        "softmax(q(x) @ k(x)^T / sqrt(hidden), dim=-1) @ v(x).",
    ),
    mistakes=(
        Mistake(
            "attention without its scale",
            (
                "The weights are sharper than they should be, the more so the larger hidden is.",
                "Look at what happens to the scores between the product and the softmax.",
                "The dot product of two vectors of n numbers varies with n, and nothing evens that out.",
                "Divide the scores by sqrt(hidden).",
            ),
            edits=(("scores = scores / self.scale", "scores = scores * 1.0"),),
        ),
        Mistake(
            "scaled by the input's size instead of hidden",
            (
                "Right only where input and hidden are of one size.",
                SCALE_PLACE,
                "A score sums over the numbers of a query, which are `hidden`.",
                "Divide by sqrt(hidden).",
            ),
            edits=(("math.sqrt(hidden)", "math.sqrt(input_size)"),),
        ),
        Mistake(
            "divided by hidden instead of its square root",
            (
                "The weights are flatter than they should be.",
                SCALE_PLACE,
                "The standard deviation of a score grows with the root of hidden.",
                "Divide by sqrt(hidden).",
            ),
            edits=(("math.sqrt(hidden)", "hidden"),),
        ),
        Mistake(
            "scaled by the length of the sequence",
            (
                "The weights depend on how long the sequence is beyond what a softmax does.",
                SCALE_PLACE,
                "A score sums over the numbers of a query, not over positions.",
                "Divide by sqrt(hidden).",
            ),
            edits=(("scores / self.scale", "scores / math.sqrt(x.shape[1])"),),
        ),
        Mistake(
            "multiplied by the scale instead of divided",
            (
                "Nearly all weight lies on one position.",
                SCALE_PLACE,
                "The scores grow where they should shrink.",
                "Divide by sqrt(hidden).",
            ),
            edits=(("scores / self.scale", "scores * self.scale"),),
        ),
        Mistake(
            "scaled after the softmax",
            (
                "The weights of a position sum to 1 / sqrt(hidden).",
                "Look at the order of scale and softmax.",
                "The scores are what is scaled, not the weights.",
                "Divide the scores, then take the softmax.",
            ),
            edits=(
                ("scores = scores / self.scale", "scores = scores * 1.0"),
                ("torch.softmax(scores, dim=-1)", "torch.softmax(scores, dim=-1) / self.scale"),
            ),
        ),
        Mistake(
            "softmax over the queries instead of the keys",
            (
                "A position's weights do not sum to 1; those that it receives do.",
                "Look at the axis of the softmax.",
                "The scores are (batch, query, key), and axis 1 runs over queries.",
                "Take the softmax over the last axis.",
            ),
            edits=(("torch.softmax(scores, dim=-1)", "torch.softmax(scores, dim=1)"),),
        ),
        Mistake(
            "softmax over the batch instead of the keys",
            (
                "The same cell of all sequences sums to 1: sequences share their weight.",
                "Look at the axis of the softmax.",
                "Axis 0 runs over the batch.",
                "Take the softmax over the last axis.",
            ),
            edits=(("torch.softmax(scores, dim=-1)", "torch.softmax(scores, dim=0)"),),
        ),
        Mistake(
            "no softmax",
            (
                "Weights are negative, and do not sum to 1.",
                "Look at what lies between scores and values.",
                "The scores themselves multiply the values.",
                "Take the softmax of the scores over the keys.",
            ),
            edits=(("torch.softmax(scores, dim=-1)", "scores"),),
        ),
        Mistake(
            "queries and keys change places",
            (
                "Each weight is that of the other direction: who looks is who is looked at.",
                "Look at the product that makes the scores.",
                "keys @ queries^T has the keys as rows.",
                "scores = query @ key^T.",
            ),
            edits=(("torch.bmm(query, key.transpose(1, 2))", "torch.bmm(key, query.transpose(1, 2))"),),
        ),
        Mistake(
            "the queries are their own keys",
            (
                "The scores are symmetric; the layer k is not used.",
                "Look at the product that makes the scores.",
                "It is made of queries alone.",
                "scores = query @ key^T.",
            ),
            edits=(("torch.bmm(query, key.", "torch.bmm(query, query."),),
        ),
        Mistake(
            "the keys are the values",
            (
                "The output is a mixture of keys; the layer v is not used.",
                "Look at the second product.",
                "The weights must meet the values.",
                "out = weights @ value.",
            ),
            edits=(("torch.bmm(weights, value)", "torch.bmm(weights, key)"),),
        ),
        Mistake(
            "the weights are transposed before they meet the values",
            (
                "Each position collects what it is looked at with, not what it looks at.",
                "Look at the second product.",
                "Rows of the weights are queries, and must stay rows.",
                "out = weights @ value.",
            ),
            edits=(("torch.bmm(weights, value)", "torch.bmm(weights.transpose(1, 2), value)"),),
        ),
        Mistake(
            "values made by the queries' layer",
            (
                "The output is a mixture of queries; the layer v is not used.",
                "Look at which layer makes what.",
                "The values go through q.",
                "value = v(x).",
            ),
            edits=(("value = self.v(x)", "value = self.q(x)"),),
        ),
        Mistake(
            "the biases are not used",
            (
                "Every projection is off by its bias.",
                "Look at how the layers are applied.",
                "Multiplying with the weight alone leaves the bias out.",
                "Call the layers: self.q(x), self.k(x), self.v(x).",
            ),
            edits=tuple((f"self.{name}(x)", f"x @ self.{name}.weight.T") for name in "qkv"),
        ),
        Mistake(
            "positions look at the batch instead of the sequence",
            (
                "Changing one sequence changes the others.",
                "Look at which axes the products run over.",
                "Batch and positions have changed places.",
                "x is (batch, seq, input): attend within axis 1.",
            ),
            edits=(
                ("query = self.q(x)", "x = x.transpose(0, 1)\n        query = self.q(x)"),
                ("return out", "return out.transpose(0, 1)"),
            ),
        ),
        Mistake(
            "the future is hidden",
            (
                "A position sees only those before it.",
                "Look for triu, tril or a mask.",
                "Nothing is hidden in this exercise.",
                "Take the softmax of all scores.",
            ),
            edits=(
                (
                    "weights = torch.softmax(",
                    "past = torch.ones_like(scores).tril().bool()\n"
                    '        scores = scores.masked_fill(~past, float("-inf"))\n'
                    "        weights = torch.softmax(",
                ),
            ),
        ),
        Mistake(
            "no position sees itself",
            (
                "The diagonal of the weights is 0.",
                "Look for a mask, or fill_diagonal_.",
                "A position may look at itself.",
                "Take the softmax of all scores.",
            ),
            edits=(
                (
                    "weights = torch.softmax(",
                    "own = torch.eye(x.shape[1], device=x.device).bool()\n"
                    '        scores = scores.masked_fill(own, float("-inf"))\n'
                    "        weights = torch.softmax(",
                ),
            ),
        ),
        Mistake(
            "the key is turned by `view` instead of a transpose",
            (
                "The scores have the right shape and the wrong numbers.",
                "Look at how the keys are transposed.",
                "view and reshape keep the order of numbers; a transpose changes it.",
                "key.transpose(1, 2).",
            ),
            edits=(("key.transpose(1, 2)", "key.reshape(key.shape[0], key.shape[2], key.shape[1])"),),
        ),
        Mistake(
            "the weights are cut off from the gradient",
            (
                "The numbers are right, and q and k get no gradient.",
                "Look for detach, .data or no_grad.",
                "Attention learns where to look through its weights.",
                "Use the weights as they are.",
            ),
            edits=(("torch.softmax(scores, dim=-1)", "torch.softmax(scores, dim=-1).detach()"),),
        ),
        Mistake(
            "exponentials without subtracting the maximum",
            (
                "Right for small scores, NaN for large ones.",
                "Look at exp.",
                "exp(200) is infinite, and infinity over infinity is NaN.",
                "Subtract each row's maximum before exp, or use torch.softmax.",
            ),
            edits=(("torch.exp(scores - scores.amax(dim=2, keepdim=True))", "torch.exp(scores)"),),
            of=2,
        ),
        Mistake(
            "the output is the mean over positions",
            (
                "Every position has the same output.",
                "Look at what is done to the output.",
                "One output for each position is asked for.",
                "Return weights @ value as it is.",
            ),
            edits=(("return out", "return out.mean(1, keepdim=True).expand_as(out)"),),
        ),
    ),
)
