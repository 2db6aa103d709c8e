"""Exercise: one step of multi-query attention with a cache."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.attention.scores import ScoreRule
from regard.attention.softmax import attend
from regard.exercises.spec import Case, Draw, Exercise, Mistake, Right
from regard.exercises.step_parts import HINTS, MISTAKES, SCALE, WORDS, probes, trials

TASK = """
One token of multi-query attention in decoding (Shazeer 2019). Every head has its own query, all heads share
one key and one value, and those of earlier tokens are in a cache:

    q[b, h] = x[b] W_q[h]                 K, V = cache with x[b] W_k and x[b] W_v appended at the end
    weights[b, h] = softmax over n of q[b, h] . K[b, n]                              (not scaled)
    y[b] = sum over h of (sum over n of weights[b, h, n] V[b, n]) W_o[h]

- `x` (b, d), `prev_K` (b, n, k), `prev_V` (b, n, v), `W_q` (h, d, k), `W_k` (d, k), `W_v` (d, v),
  `W_o` (h, v, d).
- Returns `(y, new_K, new_V)`: (b, d), (b, n + 1, k), (b, n + 1, v). n may be 0. The given caches stay as
  they are.
"""

STARTER = '''import torch


def mqa_step(x, prev_K, prev_V, W_q, W_k, W_v, W_o):
    """x (b, d), prev_K (b, n, k), prev_V (b, n, v), W_q (h, d, k), W_k (d, k), W_v (d, v), W_o (h, v, d).

    Returns y (b, d), new_K (b, n + 1, k), new_V (b, n + 1, v).
    """
    raise NotImplementedError
'''

STEPS = """import torch

def mqa_step(x, prev_K, prev_V, W_q, W_k, W_v, W_o):
    q = torch.einsum("bd,hdk->bhk", x, W_q)
    k = torch.einsum("bd,dk->bk", x, W_k)
    v = torch.einsum("bd,dv->bv", x, W_v)
    new_K = torch.cat([prev_K, k.unsqueeze(-2)], dim=-2)
    new_V = torch.cat([prev_V, v.unsqueeze(-2)], dim=-2)
    logits = torch.einsum("bhk,bnk->bhn", q, new_K)
    weights = torch.softmax(logits, dim=-1)
    o = torch.einsum("bhn,bnv->bhv", weights, new_V)
    y = torch.einsum("bhv,hvd->bd", o, W_o)
    return y, new_K, new_V
"""

LOOP = """import torch

def mqa_step(x, prev_K, prev_V, W_q, W_k, W_v, W_o):
    K = torch.cat((prev_K, (x @ W_k)[:, None, :]), 1)
    V = torch.cat((prev_V, (x @ W_v)[:, None, :]), 1)
    rows = []
    for b in range(x.shape[0]):
        row = 0
        for h in range(W_q.shape[0]):
            s = K[b] @ (x[b] @ W_q[h])
            e = torch.exp(s - s.max())
            row = row + (e / e.sum()) @ V[b] @ W_o[h]
        rows.append(row)
    return torch.stack(rows), K, V
"""

MATMUL = """import torch

def mqa_step(x, prev_K, prev_V, W_q, W_k, W_v, W_o):
    b, d = x.shape
    h, _, k = W_q.shape
    q = (x @ W_q.permute(1, 0, 2).reshape(d, h * k)).reshape(b, h, k)
    new_K = torch.cat([prev_K, torch.matmul(x, W_k).unsqueeze(1)], dim=1)
    new_V = torch.cat([prev_V, torch.matmul(x, W_v).unsqueeze(1)], dim=1)
    a = torch.bmm(q, new_K.transpose(1, 2)).softmax(dim=2)
    out = torch.bmm(a, new_V)
    return out.reshape(b, -1) @ W_o.reshape(-1, W_o.shape[2]), new_K, new_V
"""

SCALED = """import torch
import torch.nn.functional as F

def mqa_step(x, prev_K, prev_V, W_q, W_k, W_v, W_o):
    n = prev_K.size(1)
    K = prev_K.new_empty(x.size(0), n + 1, W_k.size(1))
    V = prev_V.new_empty(x.size(0), n + 1, W_v.size(1))
    K[:, :n], K[:, n] = prev_K, x @ W_k
    V[:, :n], V[:, n] = prev_V, x @ W_v
    q = torch.tensordot(x, W_q, dims=([1], [1]))
    out = F.scaled_dot_product_attention(q, K, V)
    return torch.tensordot(out, W_o, dims=([1, 2], [0, 1])), K, V
"""


def reference(case: Case, *, scale: str = "none") -> tuple[Tensor, Tensor, Tensor]:
    """One token of multi-query attention (Shazeer 2019, 3.1): one key and value head for all queries."""
    x, past_k, past_v, w_q, w_k, w_v, w_o = case.args
    q = torch.einsum("bd,hdk->bhk", x, w_q)
    k = torch.cat([past_k, torch.einsum("bd,dk->bk", x, w_k)[:, None]], dim=1)
    v = torch.cat([past_v, torch.einsum("bd,dv->bv", x, w_v)[:, None]], dim=1)
    rule = ScoreRule(scale=1.0 if scale == "none" else None)
    out = attend(q[:, :, None], k[:, None], v[:, None], rule).out
    return torch.einsum("bhv,hvd->bd", out[:, :, 0], w_o), k, v


def make(draw: Draw) -> Case:
    return Case(
        (
            draw.normal("batch", "model_dim"),
            draw.normal("batch", "past", "qk_dim"),
            draw.normal("batch", "past", "v_dim"),
            draw.normal("head", "model_dim", "qk_dim", scale=draw["model_dim"] ** -0.5),
            draw.normal("model_dim", "qk_dim", scale=draw["model_dim"] ** -0.5),
            draw.normal("model_dim", "v_dim", scale=draw["model_dim"] ** -0.5),
            draw.normal("head", "v_dim", "model_dim", scale=draw["v_dim"] ** -0.5),
        )
    )


EXERCISE = Exercise(
    id="mqa-step",
    title="One step of multi-query attention",
    names=("mqa_step",),
    task=TASK,
    starter=STARTER,
    reference=reference,
    right=(
        Right("einsum, step by step", STEPS),
        Right("loops over sequences and heads", LOOP),
        Right("matrix products", MATMUL),
        Right("scaled, with a kernel", SCALED),
    ),
    conventions=(SCALE,),
    words={**WORDS, "1": ("batch", "position", "qk_dim"), "2": ("batch", "position", "v_dim")},
    trials=trials(make),
    probes=probes(make),
    hints=HINTS,
    mistakes=(
        *MISTAKES,
        Mistake(
            "all heads ask the same",
            (
                "Every head has the same weights.",
                "Look at the head axis of W_q.",
                "The queries are summed over the heads before they meet the keys.",
                "Keep the head axis: one query for each head.",
            ),
            edits=((" x, W_q)", " x, W_q.sum(0, keepdim=True).expand_as(W_q))"),),
        ),
        Mistake(
            "all heads use the first head's query",
            (
                "Every head has the same weights.",
                "Look at the head axis of W_q.",
                "Keys and values are shared among heads in multi-query attention, queries are not.",
                "Project x with every head's W_q.",
            ),
            edits=((" x, W_q)", " x, W_q[:1].expand_as(W_q))"),),
        ),
    ),
)
