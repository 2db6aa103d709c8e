"""Exercise: multi-head attention whose values are twice as wide as the model."""

from __future__ import annotations

from regard.exercises.multi_head_mask import (
    DRIVE,
    EMPTY_ROW,
    STEPS,
    Cases,
    probes,
    reference,
    trials,
)
from regard.exercises.multi_head_parts import COMMON, MASK_MISTAKES, SCALED
from regard.exercises.spec import Exercise, Mistake, Right

TASK = """
Multi-head attention as in `multi-head-mask`, with values twice as wide. Queries and keys of a head have
d_k = d_model / num_heads numbers, its values 2 * d_k, and the output is still d_model wide:

    head_i = softmax(Q_i K_i^T / sqrt(d_k), over the visible keys) V_i          (batch, Lq, 2 * d_k)
    output = W_o(head_1, head_2, ... side by side)                              (batch, Lq, d_model)

- Layers, all `nn.Linear`: `W_q`, `W_k` from d_model to d_model, `W_v` from d_model to 2 * d_model, `W_o` from
  2 * d_model to d_model. Head i takes neighbouring numbers: of the values,
  2 * d_k * i to 2 * d_k * (i + 1) - 1.
- Methods: `scaled_dot_product_attention`, `split_heads`, `combine_heads`, `forward`; we call `forward`.
- `forward(Q, K, V, mask=None)`: Q (batch, Lq, d_model), K and V (batch, Lk, d_model) -> (batch, Lq, d_model).
- `mask`: whole numbers, (Lq, Lk) for all sequences or (batch, Lq, Lk) for each, the same for all heads.
  0 = hidden, 1 = may look. A query that sees no key gets zeros from every head.
"""

STARTER = '''import torch
from torch import nn


class MultiHeadAttention(nn.Module):
    """Layers W_q, W_k, W_v (d_model to 2 * d_model), W_o (2 * d_model to d_model)."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        raise NotImplementedError

    def scaled_dot_product_attention(self, Q, K, V, mask=None):
        raise NotImplementedError

    def split_heads(self, x):
        """(batch, L, width) -> (batch, num_heads, L, width / num_heads)."""
        raise NotImplementedError

    def combine_heads(self, x):
        """(batch, num_heads, L, width / num_heads) -> (batch, L, width)."""
        raise NotImplementedError

    def forward(self, Q, K, V, mask=None):
        """Q (batch, Lq, d_model), K and V (batch, Lk, d_model), mask (Lq, Lk) or (batch, Lq, Lk)."""
        raise NotImplementedError
'''

WIDE = STEPS.replace(
    "self.W_v = nn.Linear(d_model, d_model", "self.W_v = nn.Linear(d_model, 2 * d_model"
).replace("self.W_o = nn.Linear(d_model, d_model", "self.W_o = nn.Linear(2 * d_model, d_model")

TOP = """import torch
from torch import nn
from torch.nn import functional as F

class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        assert d_model % num_heads == 0
        self.num_heads = num_heads
        self.d_k = d_model // num_heads
        self.d_v = 2 * self.d_k
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, num_heads * self.d_v, bias=False)
        self.W_o = nn.Linear(num_heads * self.d_v, d_model, bias=False)
"""

HALVES = f"""{TOP}
    def forward(self, Q, K, V, mask=None):
        q = self.W_q(Q).unflatten(-1, (self.num_heads, self.d_k))
        k = self.W_k(K).unflatten(-1, (self.num_heads, self.d_k))
        v = self.W_v(V).unflatten(-1, (self.num_heads, self.d_v))
        s = torch.einsum("bqhd,bkhd->bhqk", q, k) / self.d_k ** 0.5
        if mask is not None:
            s = s.masked_fill((mask if mask.dim() == 2 else mask[:, None]) == 0, -1e4)
        first = torch.einsum("bhqk,bkhv->bqhv", s.softmax(-1), v[..., :self.d_k])
        second = torch.einsum("bhqk,bkhv->bqhv", s.softmax(-1), v[..., self.d_k:])
        return self.W_o(torch.cat([first, second], dim=-1).flatten(-2))
"""

KERNEL = f"""{TOP}
    def split_heads(self, x, width):
        return x.view(x.shape[0], x.shape[1], self.num_heads, width).transpose(1, 2)

    def forward(self, Q, K, V, mask=None):
        if mask is not None:
            mask = mask.bool()
            mask = mask.unsqueeze(1) if mask.dim() == 3 else mask
        q, k = self.split_heads(self.W_q(Q), self.d_k), self.split_heads(self.W_k(K), self.d_k)
        v = self.split_heads(self.W_v(V), self.d_v)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.W_o(out.transpose(1, 2).contiguous().view(out.shape[0], out.shape[2], -1))
"""

EACH_HEAD = f"""{TOP}
    def forward(self, Q, K, V, mask=None):
        qs = self.W_q(Q).split(self.d_k, dim=2)
        ks = self.W_k(K).split(self.d_k, dim=2)
        vs = self.W_v(V).split(self.d_v, dim=2)
        out = []
        for q, k, v in zip(qs, ks, vs):
            s = torch.matmul(q, k.mT).div(self.d_k ** 0.5)
            if mask is not None:
                s = torch.where(mask == 0, torch.full_like(s, float("-inf")), s)
            out.append(torch.nan_to_num(torch.softmax(s, dim=2)) @ v)
        return self.W_o(torch.cat(out, dim=2))
"""

BIASES = KERNEL.replace(", bias=False", "")

WIDE_MISTAKES = (
    Mistake(
        "scaled by the values' width",
        (
            "The weights are flatter than they should be, by the root of 2.",
            "Look at the number that the scores are divided by.",
            "A score sums over the d_k numbers of a query; the values' width plays no part in it.",
            "Divide by the square root of d_model / num_heads.",
        ),
        edits=((SCALED, "scores = scores / math.sqrt(v.shape[-1])"),),
    ),
    Mistake(
        "the values are cut in two before the heads are split",
        (
            "The output projection meets the heads' numbers in another order.",
            "Look at which numbers of W_v's output head 0 gets.",
            "Each half is split into heads on its own, so a head gets two pieces from far apart.",
            "Split all 2 * d_model numbers into num_heads pieces of 2 * d_k at once.",
        ),
        edits=(
            (
                "v = self.split_heads(self.W_v(V))",
                "v = torch.cat([self.split_heads(half) for half in self.W_v(V).chunk(2, dim=-1)], dim=-1)",
            ),
        ),
    ),
    Mistake(
        "the second half of the values is lost",
        (
            "Half of W_o's columns have no effect.",
            "Look at how many numbers of a value reach the output.",
            "Only the first d_k numbers of each head's value are used.",
            "Average all 2 * d_k numbers, and give all of them to W_o.",
        ),
        edits=(
            (
                "heads = weights @ v",
                "heads = weights @ torch.cat([v.chunk(2, -1)[0], 0 * v.chunk(2, -1)[1]], -1)",
            ),
        ),
    ),
    Mistake(
        "the two halves of a value are the same",
        (
            "Half of W_v's rows have no effect.",
            "Look at what the wider half of a head's values is made of.",
            "The first d_k numbers are used twice.",
            "Use W_v's own 2 * d_k numbers for each head.",
        ),
        edits=(("heads = weights @ v", "heads = (weights @ v.chunk(2, -1)[0]).repeat(1, 1, 1, 2)"),),
    ),
    Mistake(
        "values as wide as the model",
        (
            "W_v and W_o have not the shapes that were asked for.",
            "Look at the constructor.",
            "W_v makes d_model numbers, as in plain multi-head attention.",
            "W_v goes from d_model to 2 * d_model, W_o from 2 * d_model to d_model.",
        ),
        source=STEPS,
    ),
)

EXERCISE = Exercise(
    id="wide-values",
    title="Multi-head attention with wide values",
    names=("MultiHeadAttention",),
    task=TASK,
    starter=STARTER,
    reference=reference,
    right=(
        Right("small steps", WIDE),
        Right("einsum, half the values at a time", HALVES),
        Right("scaled_dot_product_attention", KERNEL),
        Right("one head after the other", EACH_HEAD),
        Right("layers with biases", BIASES),
    ),
    drive=DRIVE,
    conventions=(EMPTY_ROW,),
    words={"": ("batch", "query", "model_dim")},
    trials=trials(Cases(2)),
    probes=probes(Cases(2)),
    hints=(
        "Some head's average of the values is not the one that was asked for.",
        "Take one head and one sequence, and follow the widths: d_k for queries and keys, 2 d_k for values.",
        "Either the split gives a head the wrong numbers, or the scale follows the wrong width.",
        "Split W_v's 2 * d_model numbers into num_heads pieces of 2 * d_k; scale by sqrt(d_k); join; W_o.",
    ),
    mistakes=(*COMMON, *MASK_MISTAKES, *WIDE_MISTAKES),
)
