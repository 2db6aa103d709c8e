"""Exercise: multi-head attention whose queries and values have widths of their own."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional as F

from regard.attention.softmax import attend
from regard.exercises.multi_head_parts import COMMON, SCALED
from regard.exercises.spec import Case, Draw, Exercise, Mistake, Probe, Right, Trial
from regard.layers.attention import merge_heads, split_heads

TASK = """
Multi-head attention in which queries and keys of a head have `qk_length` numbers and values `value_length`,
whatever the width of the embedding:

    head_i = softmax(Q_i K_i^T / sqrt(qk_length)) V_i
    output = W_o(head_1, head_2, ... side by side)

- Layers, all `nn.Linear`: `W_q`, `W_k` from embedding_dim to num_heads * qk_length, `W_v` from embedding_dim
  to num_heads * value_length, `W_o` from num_heads * value_length to embedding_dim.
- `split_heads(x, vec_length)`: (B, T, num_heads * vec_length) -> (B, num_heads, T, vec_length). Head i takes
  the numbers i * vec_length to (i + 1) * vec_length - 1. `combine_heads(x)` is its inverse.
- `forward(Q, K, V)`: Q (B, Tq, embedding_dim), K and V (B, Tk, embedding_dim) -> (B, Tq, embedding_dim).
  Every query sees every key. No dropout.
"""

STARTER = '''import torch
from torch import nn


class MultiHeadAttention(nn.Module):
    """Layers W_q, W_k, W_v, W_o."""

    def __init__(self, num_heads, embedding_dim, qk_length, value_length):
        super().__init__()
        raise NotImplementedError

    def split_heads(self, x, vec_length):
        """(B, T, num_heads * vec_length) -> (B, num_heads, T, vec_length)."""
        raise NotImplementedError

    def combine_heads(self, x):
        """(B, num_heads, T, vec_length) -> (B, T, num_heads * vec_length)."""
        raise NotImplementedError

    def forward(self, Q, K, V):
        """Q (B, Tq, embedding_dim), K and V (B, Tk, embedding_dim) -> (B, Tq, embedding_dim)."""
        raise NotImplementedError
'''

LAYERS = """
    def __init__(self, num_heads, embedding_dim, qk_length, value_length):
        super().__init__()
        self.num_heads, self.qk_length, self.value_length = num_heads, qk_length, value_length
        self.W_q = nn.Linear(embedding_dim, num_heads * qk_length, bias=False)
        self.W_k = nn.Linear(embedding_dim, num_heads * qk_length, bias=False)
        self.W_v = nn.Linear(embedding_dim, num_heads * value_length, bias=False)
        self.W_o = nn.Linear(num_heads * value_length, embedding_dim, bias=False)
"""
TOP = f"""import math
import torch
from torch import nn

class MultiHeadAttention(nn.Module):
{LAYERS}"""

STEPS = f"""{TOP}
    def split_heads(self, x, vec_length):
        B, T = x.shape[0], x.shape[1]
        x = x.reshape(B, T, self.num_heads, -1)
        return x.transpose(1, 2)

    def combine_heads(self, x):
        B, T = x.shape[0], x.shape[2]
        x = x.transpose(1, 2)
        return x.reshape(B, T, -1)

    def forward(self, Q, K, V):
        q = self.split_heads(self.W_q(Q), self.qk_length)
        k = self.split_heads(self.W_k(K), self.qk_length)
        v = self.split_heads(self.W_v(V), self.value_length)
        scores = q @ k.transpose(-2, -1)
        scores = scores / math.sqrt(q.shape[-1])
        weights = torch.softmax(scores, dim=-1)
        heads = weights @ v
        joined = self.combine_heads(heads)
        out = self.W_o(joined)
        return out
"""

EACH_HEAD = f"""{TOP}
    def forward(self, Q, K, V):
        Q, K, V = self.W_q(Q), self.W_k(K), self.W_v(V)
        heads = []
        for i in range(self.num_heads):
            a, b = i * self.qk_length, (i + 1) * self.qk_length
            scores = torch.bmm(Q[..., a:b], K[..., a:b].transpose(1, 2)) * self.qk_length ** -0.5
            e = torch.exp(scores - scores.max(dim=-1, keepdim=True)[0])
            A = e / e.sum(dim=-1, keepdim=True)
            heads.append(torch.bmm(A, V[..., i * self.value_length:(i + 1) * self.value_length]))
        return self.W_o(torch.cat(heads, dim=-1))
"""

KERNEL = f"""{TOP}
    def split_heads(self, x, vec_length):
        return torch.stack(x.split(vec_length, dim=-1), dim=1)

    def combine_heads(self, x):
        return torch.cat(x.unbind(dim=1), dim=-1)

    def forward(self, Q, K, V):
        q = self.split_heads(self.W_q(Q), self.qk_length)
        k = self.split_heads(self.W_k(K), self.qk_length)
        v = self.split_heads(self.W_v(V), self.value_length)
        return self.W_o(self.combine_heads(nn.functional.scaled_dot_product_attention(q, k, v)))
"""

EINSUM = f"""{TOP}
    def split_heads(self, x, vec_length):
        B, T, C = x.size()
        assert C // self.num_heads == vec_length
        return x.view(B, T, self.num_heads, vec_length).permute(0, 2, 1, 3)

    def combine_heads(self, x):
        B, H, T, C = x.size()
        return x.permute(0, 2, 1, 3).contiguous().view(B, T, H * C)

    def scaled_dot_product_attention(self, Q, K, V, mask=None):
        A = torch.einsum("bhqd,bhkd->bhqk", Q / math.sqrt(self.qk_length), K)
        if mask is not None:
            A = A.masked_fill(mask == 0, float("-inf"))
        return torch.einsum("bhqk,bhkv->bhqv", nn.Softmax(dim=-1)(A), V)

    def forward(self, Q, K, V, mask=None):
        Q, K, V = (self.split_heads(w(x), n) for w, x, n in (
            (self.W_q, Q, self.qk_length), (self.W_k, K, self.qk_length), (self.W_v, V, self.value_length)))
        return self.W_o(self.combine_heads(self.scaled_dot_product_attention(Q, K, V, mask)))
"""

BIASES = EINSUM.replace(", bias=False", "")


def reference(case: Case) -> Tensor:
    """Our attention between our split and merge."""
    n_head = case.init[0]
    if case.call == "split_heads":
        return split_heads(case.args[0], n_head)
    if case.call == "combine_heads":
        return merge_heads(case.args[0])
    q, k, v = (
        split_heads(F.linear(x, case.weights[f"W_{name}.weight"]), n_head)
        for name, x in zip("qkv", case.args, strict=True)
    )
    return F.linear(merge_heads(attend(q, k, v).out), case.weights["W_o.weight"])


def layer(draw: Draw, *args: Any, call: str = "") -> Case:
    """A case with these arguments, and all weights."""
    n_head, width, qk, v = (draw[word] for word in ("head", "embedding", "qk_length", "value_length"))
    return Case(
        args,
        call=call,
        init=(n_head, width, qk, v),
        weights={
            "W_q.weight": draw.weight(n_head * qk, width),
            "W_k.weight": draw.weight(n_head * qk, width),
            "W_v.weight": draw.weight(n_head * v, width),
            "W_o.weight": draw.weight(width, n_head * v),
        },
    )


def cross(draw: Draw) -> Case:
    queries = draw.normal("batch", "query", "embedding")
    keys, values = (draw.normal("batch", "key", "embedding") for _ in range(2))
    return layer(draw, queries, keys, values)


def itself(draw: Draw) -> Case:
    x = draw.normal("batch", "query", "embedding")
    return layer(draw, x, x.clone(), x.clone())


def large_scores(draw: Draw) -> Case:
    case = cross(draw)
    return case.with_args(*(15.0 * x for x in case.args))


def split(draw: Draw) -> Case:
    width = draw["head"] * draw["value_length"]
    return layer(draw, draw.normal("batch", "key", width), draw["value_length"], call="split_heads")


def combine(draw: Draw) -> Case:
    return layer(draw, draw.normal("batch", "head", "query", "value_length"), call="combine_heads")


def neighbour_changed(draw: Draw) -> tuple[Case, ...]:
    base = cross(draw)
    changed = [x.clone() for x in base.args]
    for x in changed:
        x[0] = x[0].flip(-1) + 1.0
    return base, base.with_args(*changed)


def query_changed(draw: Draw) -> tuple[Case, ...]:
    base = cross(draw)
    queries = base.args[0].clone()
    queries[:, 0] += 2.0
    return base, base.with_args(queries, *base.args[1:])


def keys_reordered(draw: Draw) -> tuple[Case, ...]:
    base = cross(draw)
    queries, keys, values = base.args
    order = draw.distinct(draw["key"], draw["key"])
    return base, base.with_args(queries, keys[:, order], values[:, order])


SIZES = {"batch": 2, "query": 3, "key": 5, "head": 3, "embedding": 11, "qk_length": 7, "value_length": 5}

MISTAKES = (
    *COMMON,
    Mistake(
        "scaled by the values' width",
        (
            "Right where queries and values are equally wide, and else the weights are too sharp or "
            "too flat.",
            "Look at the number that the scores are divided by.",
            "A score sums over the numbers of a query, not of a value.",
            "Divide by the square root of qk_length.",
        ),
        edits=((SCALED, "scores = scores / math.sqrt(self.value_length)"),),
    ),
    Mistake(
        "scaled by all heads together",
        (
            "The weights are flatter than they should be, the more so with many heads.",
            "Look at the number that the scores are divided by.",
            "num_heads * qk_length is what W_q makes, and one score sums over one head only.",
            "Divide by the square root of qk_length.",
        ),
        edits=((SCALED, "scores = scores / math.sqrt(self.num_heads * self.qk_length)"),),
    ),
    Mistake(
        "a causal mask nobody asked for",
        (
            "The first query sees the first key only.",
            "Look for tril, triu or a mask.",
            "Keys after the query are hidden, and in this exercise every query sees every key.",
            "Leave the mask out.",
        ),
        edits=(
            (
                SCALED,
                SCALED + "\n        scores = scores.masked_fill(torch.ones_like(scores).triu(1) == 1, -1e4)",
            ),
        ),
    ),
)

EXERCISE = Exercise(
    id="multi-head-lengths",
    title="Multi-head attention with widths of its own",
    names=("MultiHeadAttention",),
    task=TASK,
    starter=STARTER,
    reference=reference,
    right=(
        Right("small steps", STEPS),
        Right("one head after the other", EACH_HEAD),
        Right("scaled_dot_product_attention", KERNEL),
        Right("einsum, view and permute", EINSUM),
        Right("layers with biases", BIASES),
    ),
    words={"": ("batch", "query", "embedding")},
    trials=(
        Trial("cross-attention", cross, SIZES, variants=True),
        Trial("self-attention", itself, {**SIZES, "query": 5}, variants=True),
        Trial("values wider than queries", cross, {**SIZES, "head": 2, "qk_length": 3, "value_length": 7}),
        Trial(
            "as wide as the embedding", cross, {**SIZES, "embedding": 6, "qk_length": 2, "value_length": 2}
        ),
        Trial("batch of one", cross, {**SIZES, "batch": 1}),
        Trial("as many sequences as heads", cross, {**SIZES, "batch": 3}),
        Trial("one query", cross, {**SIZES, "query": 1}),
        Trial("one head", cross, {**SIZES, "head": 1}),
        Trial(
            "large scores",
            large_scores,
            SIZES,
            grad=False,
            kind="fragile",
            says="exp of a large score is infinite: subtract the row's maximum first, as torch.softmax does.",
        ),
        Trial("split_heads", split, SIZES, optional=True),
        Trial("combine_heads", combine, SIZES, optional=True),
    ),
    probes=(
        Probe(
            "a neighbour in the batch has no say",
            neighbour_changed,
            SIZES,
            says="sequence 0 was changed: sequence 1 may not move.",
        ),
        Probe(
            "a query stands alone",
            query_changed,
            SIZES,
            says="the first query was changed: the others may not move.",
        ),
        Probe(
            "the order of the keys has no say",
            keys_reordered,
            SIZES,
            says="keys and values were put in another order: nothing may move.",
        ),
    ),
    hints=(
        "Some head's average of the values is not the one that softmax attention gives.",
        "Take one sequence and num_heads = 1 and work one query out by hand; then look at the split.",
        "Either a head gets the numbers of several positions, or scores are scaled or normalised "
        "along a wrong axis.",
        "Split to (B, heads, T, vec_length), softmax(q k^T / sqrt(qk_length)) over the keys, times "
        "v, join, W_o.",
    ),
    mistakes=MISTAKES,
)
