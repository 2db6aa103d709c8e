"""Exercise: multi-head self-attention, causal or not, with dropout on the weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from regard.attention import softmax as attention
from regard.attention.scores import ScoreRule
from regard.attention.softmax import attend
from regard.attention.visibility import Visibility
from regard.exercises.dot_product_attention import DROPOUT
from regard.exercises.multi_head_self_mistakes import MISTAKES, STEPS
from regard.exercises.spec import (
    ANYTHING,
    BIAS,
    Case,
    Convention,
    Draw,
    Exercise,
    Impossible,
    Probe,
    Right,
    Trial,
    left_out,
)
from regard.layers.attention import merge_heads, split_heads

TASK = """
Self-attention with several heads, whose outputs are joined and mixed:

    head_i = dropout(softmax(Q_i K_i^T / sqrt(hidden / num_heads))) V_i      Q_i: the i-th slice of q(x)
    output = mix(concat(head_1, ..., head_h))

- `MultiHeadSelfAttention(input_size, hidden, num_heads, causal=False, dropout=0)` has the linear layers `q`,
  `k`, `v` from `input_size` to `hidden` and `mix` from `hidden` to `hidden`, all with bias. It raises
  ValueError when `num_heads` does not divide `hidden`.
- With `causal=True` a position sees itself and those before it, and nothing after it.
- `forward(x, return_attention=False)`: x (batch, seq, input_size) -> (batch, seq, hidden). With
  `return_attention=True` it returns `(output, attention)`: the weights before dropout as
  (batch * num_heads, seq, seq), the heads of one sequence next to one another.
"""

STARTER = '''import torch
from torch import nn


class MultiHeadSelfAttention(nn.Module):
    def __init__(self, input_size, hidden, num_heads, causal=False, dropout=0):
        super().__init__()
        raise NotImplementedError

    def forward(self, x, return_attention=False):
        """(batch, seq, input_size) -> (batch, seq, hidden), and the attention (batch * heads, seq, seq)."""
        raise NotImplementedError
'''

FLAT = """import torch
import torch.nn as nn
import torch.nn.functional as F

class MultiHeadSelfAttention(nn.Module):
    def __init__(self, input_size, hidden, num_heads, causal=False, dropout=0):
        if hidden % num_heads:
            raise ValueError(f"hidden {hidden} is no multiple of num_heads {num_heads}")
        super().__init__()
        self.k = nn.Linear(input_size, hidden)
        self.q = nn.Linear(input_size, hidden)
        self.v = nn.Linear(input_size, hidden)
        self.mix = nn.Linear(hidden, hidden)
        self.dropout = nn.Dropout(dropout)
        self.num_heads, self.head_size = num_heads, hidden // num_heads
        self.scale = self.head_size ** 0.5
        self.causal = causal

    def forward(self, x, return_attention=False):
        bs, seq, _ = x.shape

        def flat(y):
            y = y.view(bs, seq, self.num_heads, self.head_size).transpose(1, 2)
            return y.reshape(bs * self.num_heads, seq, self.head_size)

        q, k, v = flat(self.q(x)), flat(self.k(x)), flat(self.v(x))
        scores = torch.bmm(q, k.transpose(1, 2)) / self.scale
        if self.causal:
            mask = torch.triu(torch.ones(seq, seq, dtype=torch.bool, device=scores.device), diagonal=1)
            scores = scores.masked_fill(mask, float("-inf"))
        probs = self.dropout(F.softmax(scores, dim=-1))
        att = torch.bmm(probs, v).view(bs, self.num_heads, seq, self.head_size)
        att = self.mix(att.transpose(1, 2).contiguous().view(bs, seq, -1))
        return (att, probs) if return_attention else att
"""

CHUNKS = """import torch
from torch import nn

class MultiHeadSelfAttention(nn.Module):
    def __init__(self, input_size, hidden, num_heads, causal=False, dropout=0):
        super().__init__()
        if hidden % num_heads != 0:
            raise ValueError("num_heads must divide hidden")
        self.h, self.causal, self.p = num_heads, causal, dropout
        self.q, self.k, self.v = (nn.Linear(input_size, hidden) for _ in range(3))
        self.mix = nn.Linear(hidden, hidden)

    def forward(self, x, return_attention=False):
        q, k, v = (torch.cat(layer(x).chunk(self.h, dim=-1), dim=0) for layer in (self.q, self.k, self.v))
        scores = q @ k.mT * q.shape[-1] ** -0.5
        if self.causal:
            position = torch.arange(x.shape[1], device=x.device)
            low = torch.finfo(scores.dtype).min
            scores = torch.where(position[None, :] <= position[:, None], scores, low)
        attention = scores.softmax(-1)
        out = nn.functional.dropout(attention, self.p, self.training) @ v
        out = self.mix(torch.cat(out.chunk(self.h, dim=0), dim=-1))
        if return_attention:
            return out, attention
        return out
"""

FUSED = """import torch
from torch import nn
from torch.nn import functional as F

class MultiHeadSelfAttention(nn.Module):
    def __init__(self, input_size, hidden, num_heads, causal=False, dropout=0):
        super().__init__()
        size, rest = divmod(hidden, num_heads)
        if rest:
            raise ValueError("hidden must be divisible by num_heads")
        self.heads, self.size, self.causal, self.dropout = num_heads, size, causal, dropout
        self.q = nn.LazyLinear(hidden)
        self.k = nn.LazyLinear(hidden)
        self.v = nn.LazyLinear(hidden)
        self.mix = nn.LazyLinear(hidden)

    def split(self, y):
        return y.unflatten(-1, (self.heads, self.size)).permute(0, 2, 1, 3)

    def forward(self, x, return_attention=False):
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        p = self.dropout if self.training else 0.0
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=self.causal)
        out = self.mix(out.permute(0, 2, 1, 3).flatten(2))
        if not return_attention:
            return out
        n = x.shape[1]
        eye = torch.eye(n, dtype=x.dtype, device=x.device).expand(len(x), self.heads, n, n)
        attention = F.scaled_dot_product_attention(q, k, eye, is_causal=self.causal)
        return out, attention.reshape(-1, n, n)
"""

LOOP = """import math
import torch
from torch import nn

class MultiHeadSelfAttention(nn.Module):
    def __init__(self, input_size, hidden, num_heads, causal=False, dropout=0):
        super().__init__()
        if num_heads < 1 or hidden % num_heads:
            raise ValueError(f"cannot split {hidden} into {num_heads} heads")
        self.num_heads, self.d = num_heads, hidden // num_heads
        self.causal = causal
        self.q, self.k = nn.Linear(input_size, hidden), nn.Linear(input_size, hidden)
        self.v, self.mix = nn.Linear(input_size, hidden), nn.Linear(hidden, hidden)
        self.drop = nn.Dropout(dropout)

    def forward(self, x, return_attention=False):
        Q, K, V = self.q(x), self.k(x), self.v(x)
        heads, maps = [], []
        for i in range(self.num_heads):
            part = slice(i * self.d, (i + 1) * self.d)
            scores = torch.einsum("bid,bjd->bij", Q[:, :, part], K[:, :, part]) / math.sqrt(self.d)
            if self.causal:
                future = torch.full_like(scores, float("-inf")).triu(1)
                scores = scores + future
            weights = torch.softmax(scores, dim=-1)
            maps.append(weights)
            heads.append(self.drop(weights) @ V[:, :, part])
        out = self.mix(torch.cat(heads, dim=-1))
        return (out, torch.stack(maps, dim=1).flatten(0, 1)) if return_attention else out
"""

NO_BIASES = CHUNKS.replace(
    "nn.Linear(input_size, hidden)", "nn.Linear(input_size, hidden, bias=False)"
).replace("nn.Linear(hidden, hidden)", "nn.Linear(hidden, hidden, bias=False)")


def reference(
    case: Case, *, order: str = "sequence by sequence", returned: str = "before dropout", bias: str = "used"
) -> Tensor | tuple[Tensor, Tensor]:
    """Our own attention; with all weights dropped, any output will do."""
    (x,), n_head = case.args, case.init[2]

    def project(name: str, y: Tensor) -> Tensor:
        used = None if f"{name}.bias" in left_out(bias) else case.weights[f"{name}.bias"]
        return linear(y, case.weights[f"{name}.weight"], used)

    q, k, v = (split_heads(project(name, x), n_head) for name in "qkv")
    rule = ScoreRule(visible=Visibility(causal=case.init_kwargs.get("causal", False)))
    out = project("mix", merge_heads(attend(q, k, v, rule).out))
    dropped = case.train and "dropout" in case.init_kwargs
    if dropped:  # by chance, or everything, where a dropout written by hand divides 0 by 0
        out = torch.full_like(out, ANYTHING)
    if not case.kwargs.get("return_attention"):
        return out
    weights = attention.weights(q, k, rule)
    if dropped and returned == "after dropout":
        weights = torch.zeros_like(weights)
    if order == "head by head":
        weights = weights.transpose(0, 1)
    return out, weights.flatten(0, 1)


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


def drops_something(results: list[Tensor]) -> str | None:
    if torch.allclose(results[0], results[1], atol=1e-5):
        return f"with dropout {DROPOUT}, train mode gives what eval mode gives: nothing is dropped."
    return None


NONE_DROPPED = "in train mode no weight is 0, and the output is another: dropout belongs on the weights."


def drops_weights(results: list[Tensor]) -> str | None:
    trained, plain = (result.double().unflatten(-1, (-1, 2, result.shape[1])) for result in results)
    if not torch.allclose(trained[..., 0, :], trained[..., 1, :], atol=1e-5):
        return "dropout must be applied to the weights: yours drops entries of the output."
    zero = trained.abs() < 1e-7
    if not bool(zero.any()):
        return None if torch.allclose(trained, plain, atol=1e-5) else NONE_DROPPED
    if float(torch.where(zero, 0.0, trained - plain / (1 - DROPOUT)).abs().max()) > 1e-4:
        return f"in train mode a weight must be 0 or what it was over {1 - DROPOUT}; yours are neither."
    return None


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

EXERCISE = Exercise(
    id="multi-head-self-attention",
    title="Multi-head self-attention",
    names=("MultiHeadSelfAttention",),
    task=TASK,
    starter=STARTER,
    reference=reference,
    right=(
        Right("step by step", STEPS),
        Right("batch and heads as one axis, weights returned after dropout", FLAT),
        Right("heads side by side in the batch", CHUNKS),
        Right("torch's fused attention, lazy layers", FUSED),
        Right("a loop over heads", LOOP),
        Right("layers without biases", NO_BIASES),
    ),
    mistakes=MISTAKES,
    conventions=(
        Convention(
            "order",
            {
                "sequence by sequence": "row b * num_heads + i of the attention is head i of sequence b.",
                "head by head": "row i * batch + b of your attention is head i of sequence b; ours goes "
                "sequence by sequence.",
            },
        ),
        Convention(
            "returned",
            {
                "before dropout": "the weights are returned as they are before dropout.",
                "after dropout": "in train mode your weights are returned after dropout; ours before it.",
            },
        ),
        Convention(
            BIAS,
            {
                "used": "the layers have biases.",
                "without q k v mix": "your layers have no biases; ours have.",
                "without q k v": "your layers q, k and v have no biases; ours have.",
                "without mix": "your layer mix has no bias; ours has.",
            },
        ),
    ),
    words={
        "": ("batch", "position", "hidden"),
        "0": ("batch", "position", "hidden"),
        "1": ("batch x head", "query", "key"),
    },
    trials=(
        Trial("every position visible", plain, SIZES, variants=True),
        Trial("causal", causal, SIZES, variants=True),
        Trial("with its attention", with_attention, SIZES, variants=True),
        Trial("causal, with its attention", causal_with_attention, SIZES),
        Trial("batch of one", with_attention, {**SIZES, "batch": 1}),
        Trial("as many sequences as heads", causal_with_attention, {**SIZES, "batch": 3}),
        Trial("one head", with_attention, {**SIZES, "head": 1}),
        Trial("heads of one number", with_attention, {**SIZES, "head_dim": 1, "head": 5}),
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
    ),
    probes=(
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
            drops_weights,
            kind="train mode",
        ),
    ),
    hints=(
        "The output is not that of the heads attending one by one.",
        "Follow one head of one sequence: print its queries, its weights and its output.",
        "A head is a slice of neighbouring dimensions of the projections, with its own softmax and scale.",
        "Reshape to (batch, seq, heads, size), move heads before seq, attend, undo both in that order, mix.",
    ),
)
