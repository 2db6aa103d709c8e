"""Exercise: multi-head attention with a mask of 0 and 1."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.attention.scores import ScoreRule
from regard.attention.softmax import attend
from regard.attention.visibility import Visibility
from regard.exercises.multi_head_parts import COMMON, MASK_MISTAKES
from regard.exercises.spec import ANYTHING, Case, Convention, Draw, Exercise, Probe, Right, Trial
from regard.layers.attention import merge_heads, split_heads

TASK = """
Multi-head attention over `num_heads` heads of d_model / num_heads numbers each, with an optional mask:

    head_i = softmax(Q_i K_i^T / sqrt(d_model / num_heads), over the visible keys) V_i
    output = W_o(head_1, head_2, ... side by side)

- Layers: `W_q`, `W_k`, `W_v`, `W_o`, all `nn.Linear` from d_model to d_model. Head i takes neighbouring
  numbers: i * d_k to (i + 1) * d_k - 1, with d_k = d_model / num_heads.
- Methods: `scaled_dot_product_attention`, `split_heads`, `combine_heads`, `forward`; we call `forward`.
- `forward(Q, K, V, mask=None)`: Q (batch, Lq, d_model), K and V (batch, Lk, d_model) -> (batch, Lq, d_model).
- `mask`: whole numbers, (Lq, Lk) for all sequences or (batch, Lq, Lk) for each, the same for all heads.
  0 = hidden, 1 = may look. A query that sees no key gets zeros from every head.
"""

STARTER = '''import torch
from torch import nn


class MultiHeadAttention(nn.Module):
    """Layers W_q, W_k, W_v, W_o."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        raise NotImplementedError

    def scaled_dot_product_attention(self, Q, K, V, mask=None):
        raise NotImplementedError

    def split_heads(self, x):
        """(batch, L, d_model) -> (batch, num_heads, L, d_model / num_heads)."""
        raise NotImplementedError

    def combine_heads(self, x):
        """(batch, num_heads, L, d_model / num_heads) -> (batch, L, d_model)."""
        raise NotImplementedError

    def forward(self, Q, K, V, mask=None):
        """Q (batch, Lq, d_model), K and V (batch, Lk, d_model), mask (Lq, Lk) or (batch, Lq, Lk)."""
        raise NotImplementedError
'''

TOP = """import math
import torch
from torch import nn

class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)
"""

STEPS = f"""{TOP}
    def split_heads(self, x):
        B, T = x.shape[0], x.shape[1]
        x = x.reshape(B, T, self.num_heads, -1)
        return x.transpose(1, 2)

    def combine_heads(self, x):
        B, T = x.shape[0], x.shape[2]
        x = x.transpose(1, 2)
        return x.reshape(B, T, -1)

    def forward(self, Q, K, V, mask=None):
        q = self.split_heads(self.W_q(Q))
        k = self.split_heads(self.W_k(K))
        v = self.split_heads(self.W_v(V))
        if mask is not None and mask.dim() == 3:
            mask = mask.unsqueeze(1)
        scores = q @ k.transpose(-2, -1)
        scores = scores / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e4)
        weights = torch.softmax(scores, dim=-1)
        heads = weights @ v
        joined = self.combine_heads(heads)
        out = self.W_o(joined)
        return out
"""

TEXTBOOK = f"""{TOP}
    def scaled_dot_product_attention(self, Q, K, V, mask=None):
        d_k = Q.size(-1)
        attn_scores = torch.matmul(Q, K.transpose(-2, -1)) / math.sqrt(d_k)
        if mask is not None:
            if mask.dim() == 2:
                mask = mask[None, None]
            else:
                mask = mask[:, None]
            attn_scores = attn_scores.masked_fill(mask == 0, -1e4)
        attn_probs = torch.softmax(attn_scores, dim=-1)
        return torch.matmul(attn_probs, V), attn_probs

    def split_heads(self, x):
        batch, length, d_model = x.size()
        return x.view(batch, length, self.num_heads, d_model // self.num_heads).permute(0, 2, 1, 3)

    def combine_heads(self, x):
        batch, heads, length, d_k = x.size()
        return x.permute(0, 2, 1, 3).contiguous().view(batch, length, heads * d_k)

    def forward(self, Q, K, V, mask=None):
        Q, K, V = self.split_heads(self.W_q(Q)), self.split_heads(self.W_k(K)), self.split_heads(self.W_v(V))
        out, attn = self.scaled_dot_product_attention(Q, K, V, mask)
        return self.W_o(self.combine_heads(out))
"""

KERNEL = f"""{TOP}
    def forward(self, Q, K, V, mask=None):
        cut = lambda x: torch.stack(x.chunk(self.num_heads, dim=-1), dim=1)
        visible = None if mask is None else mask.bool() if mask.dim() == 2 else mask.bool().unsqueeze(1)
        out = nn.functional.scaled_dot_product_attention(
            cut(self.W_q(Q)), cut(self.W_k(K)), cut(self.W_v(V)), attn_mask=visible)
        return self.W_o(torch.cat(out.unbind(1), dim=-1))
"""

FLAT = f"""{TOP}
    def forward(self, Q, K, V, mask=None):
        b, n, d = Q.shape
        m, h = K.shape[1], self.num_heads
        q = self.W_q(Q).reshape(b, n, h, d // h).permute(2, 0, 1, 3).reshape(h * b, n, d // h)
        k = self.W_k(K).reshape(b, m, h, d // h).permute(2, 0, 1, 3).reshape(h * b, m, d // h)
        v = self.W_v(V).reshape(b, m, h, d // h).permute(2, 0, 1, 3).reshape(h * b, m, d // h)
        e = torch.bmm(q, k.transpose(1, 2)) * (d // h) ** -0.5
        if mask is None:
            mask = torch.ones(n, m, device=Q.device)
        keep = mask.to(Q.dtype).expand(b, n, m).repeat(h, 1, 1)
        e = torch.exp(e - e.amax(-1, keepdim=True)) * keep
        a = e / e.sum(-1, keepdim=True).clamp(min=1e-6)
        out = torch.bmm(a, v).reshape(h, b, n, d // h).permute(1, 2, 0, 3).reshape(b, n, d)
        return self.W_o(out), a.reshape(h, b, n, m).transpose(0, 1)
"""

BIASES = TEXTBOOK.replace(", bias=False", "")


def reference(case: Case, *, empty_row: str = "zeros") -> Tensor:
    """Our attention under our visibility; rows that see nothing as the conventions say."""
    n_head = case.init[1]
    inputs, mask = case.args, case.kwargs.get("mask")
    q, k, v = (
        split_heads(F.linear(x, case.weights[f"W_{name}.weight"]), n_head)
        for name, x in zip("qkv", inputs, strict=True)
    )
    visible = Visibility() if mask is None else Visibility.from_dense(mask != 0)
    rule = ScoreRule(visible=visible)
    heads = attend(q, k, v, rule).out
    empty = None if mask is None else (mask == 0).all(-1).expand(q.shape[0], -1)[:, None, :, None]
    if empty is not None and empty_row in ("uniform", "nan"):
        mean = v.mean(2, keepdim=True)
        heads = torch.where(empty, mean if empty_row == "uniform" else torch.nan, heads)
    out = F.linear(merge_heads(heads), case.weights["W_o.weight"])
    if empty is not None and empty_row == "anything":
        out = torch.where(empty[:, 0], ANYTHING, out)
    return out


def layer(
    draw: Draw, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, wide: int = 1
) -> Case:
    """A case with these arguments, and all weights; values are `wide` times as wide as the model."""
    width = draw["head"] * draw["head_dim"]
    return Case(
        (queries, keys, values),
        {} if mask is None else {"mask": mask},
        init=(width, draw["head"]),
        weights={
            "W_q.weight": draw.weight(width, width),
            "W_k.weight": draw.weight(width, width),
            "W_v.weight": draw.weight(wide * width, width),
            "W_o.weight": draw.weight(width, wide * width),
        },
    )


def inputs(draw: Draw) -> tuple[Tensor, Tensor, Tensor]:
    width = draw["head"] * draw["head_dim"]
    return (
        draw.normal("batch", "query", width),
        draw.normal("batch", "key", width),
        draw.normal("batch", "key", width),
    )


def table(draw: Draw, *dims: str) -> Tensor:
    """A mask in which every query sees something and, where it can, not all; no two rows need be alike."""
    mask = draw.integers(0, 1, *dims)
    seen = draw.integers(0, draw["key"] - 1, *dims[:-1], 1)
    mask.scatter_(-1, seen, 1)
    if draw["key"] > 1:
        mask.scatter_(-1, (seen + 1) % draw["key"], 0)
    return mask


class Cases:
    """The cases of a layer whose values are `wide` times as wide as the model."""

    def __init__(self, wide: int) -> None:
        self.wide = wide

    def unmasked(self, draw: Draw) -> Case:
        return layer(draw, *inputs(draw), None, self.wide)

    def itself(self, draw: Draw) -> Case:
        """Self-attention under a causal mask."""
        x = inputs(draw)[0]
        mask = torch.ones(draw["query"], draw["query"], dtype=torch.long).tril()
        return layer(draw, x, x.clone(), x.clone(), mask, self.wide)

    def one_mask(self, draw: Draw) -> Case:
        return layer(draw, *inputs(draw), table(draw, "query", "key"), self.wide)

    def mask_each(self, draw: Draw) -> Case:
        return layer(draw, *inputs(draw), table(draw, "batch", "query", "key"), self.wide)

    def empty(self, draw: Draw) -> Case:
        case = self.mask_each(draw)
        case.kwargs["mask"][0, 0] = 0
        return case

    def large_scores(self, draw: Draw) -> Case:
        case = self.unmasked(draw)
        return case.with_args(*(15.0 * x for x in case.args))

    def hidden_changed(self, draw: Draw) -> tuple[Case, ...]:
        base = self.one_mask(draw)
        base.kwargs["mask"][:, -1] = 0
        base.kwargs["mask"][:, 0] = 1
        queries, keys, values = (x.clone() for x in base.args)
        keys[:, -1] += 3.0
        values[:, -1] -= 3.0
        return base, base.with_args(queries, keys, values)

    def neighbour_changed(self, draw: Draw) -> tuple[Case, ...]:
        base = self.mask_each(draw)
        mask = base.kwargs["mask"].clone()
        mask[0] = 1 - mask[0]
        mask[0, :, 0] = 1
        return base, replace(base, kwargs={"mask": mask})


CASES = Cases(1)
SIZES = {"batch": 2, "query": 3, "key": 7, "head": 3, "head_dim": 5}
# An answer that returns its weights too is as good: the output is what we ask for.
DRIVE = """
def drive(answer, *args, **kwargs):
    result = answer(*args, **kwargs)
    return result[0] if isinstance(result, (tuple, list)) and result else result
"""
EMPTY_ROW = Convention(
    "empty_row",
    {
        "zeros": "a query that sees no key gets zeros.",
        "uniform": "a query that sees no key gives every key the same weight, because a large finite "
        "number hides; "
        "we give zeros.",
        "nan": "a query that sees no key is NaN, because all its scores are -inf; we give zeros.",
        "anything": "a query that sees no key gets numbers that depend on how you hide; we give zeros.",
    },
)


def trials(cases: Cases) -> tuple[Trial, ...]:
    """The trials of a layer with a mask."""
    return (
        Trial("no mask", cases.unmasked, SIZES, variants=True),
        Trial("a mask for all sequences", cases.one_mask, SIZES, variants=True),
        Trial("a mask for each sequence", cases.mask_each, SIZES, variants=True),
        Trial("causal self-attention", cases.itself, {**SIZES, "query": 5, "head": 2}),
        Trial("batch of one", cases.mask_each, {**SIZES, "batch": 1}),
        Trial("as many sequences as heads", cases.mask_each, {**SIZES, "batch": 3}),
        Trial("one query", cases.one_mask, {**SIZES, "query": 1}),
        Trial("one head", cases.one_mask, {**SIZES, "head": 1}),
        Trial("a query that sees nothing", cases.empty, SIZES, grad=False),
        Trial(
            "large scores",
            cases.large_scores,
            SIZES,
            grad=False,
            kind="fragile",
            says="exp of a large score is infinite: subtract the row's maximum first, as torch.softmax does.",
        ),
    )


def probes(cases: Cases) -> tuple[Probe, ...]:
    """The perturbations of a layer with a mask."""
    return (
        Probe(
            "a hidden key has no say",
            cases.hidden_changed,
            SIZES,
            says="a key that no query sees was changed, and its value: nothing may move.",
        ),
        Probe(
            "a neighbour's mask has no say",
            cases.neighbour_changed,
            {**SIZES, "batch": 3},
            says="the mask of sequence 0 was changed: sequences 1 and 2 may not move.",
        ),
    )


EXERCISE = Exercise(
    id="multi-head-mask",
    title="Multi-head attention with a mask",
    names=("MultiHeadAttention",),
    task=TASK,
    starter=STARTER,
    reference=reference,
    right=(
        Right("small steps", STEPS),
        Right("as the textbook has it", TEXTBOOK),
        Right("scaled_dot_product_attention", KERNEL),
        Right("heads and sequences in one axis", FLAT),
        Right("layers with biases", BIASES),
    ),
    drive=DRIVE,
    conventions=(EMPTY_ROW,),
    words={"": ("batch", "query", "model_dim")},
    trials=trials(CASES),
    probes=probes(CASES),
    hints=(
        "Some query's average of the values is not the one over the keys its mask leaves.",
        "Take one head and one sequence, and work one query out by hand: first without a mask, then with.",
        "Split, scale, mask, softmax, join: one of them works along another axis than it should.",
        "softmax over keys of q k^T / sqrt(d_k), with -inf where mask == 0; a (batch, Lq, Lk) mask "
        "needs unsqueeze(1).",
    ),
    mistakes=(*COMMON, *MASK_MISTAKES),
)
