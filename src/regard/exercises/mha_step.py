"""Exercise: one step of multi-head attention with a cache."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.attention.scores import ScoreRule
from regard.attention.softmax import attend
from regard.exercises.spec import Case, Draw, Exercise, Mistake, Right
from regard.exercises.step_parts import HINTS, MISTAKES, SCALE, WORDS, probes, trials

TASK = """
One token of multi-head attention in decoding (Shazeer 2019). Every head has its own query, keys and values,
and those of earlier tokens are in a cache:

    q[b, h] = x[b] W_q[h]                 K, V = cache with x[b] W_k[h] and x[b] W_v[h] appended at the end
    weights[b, h] = softmax over n of q[b, h] . K[b, h, n]                           (not scaled)
    y[b] = sum over h of (sum over n of weights[b, h, n] V[b, h, n]) W_o[h]

- `x` (b, d), `prev_K` (b, h, n, k), `prev_V` (b, h, n, v), `W_q` and `W_k` (h, d, k), `W_v` (h, d, v),
  `W_o` (h, v, d).
- Returns `(y, new_K, new_V)`: (b, d), (b, h, n + 1, k), (b, h, n + 1, v). n may be 0. The given caches stay
  as they are.
"""

STARTER = '''import torch


def mha_step(x, prev_K, prev_V, W_q, W_k, W_v, W_o):
    """x (b, d), prev_K (b, h, n, k), prev_V (b, h, n, v), W_q, W_k (h, d, k), W_v (h, d, v), W_o (h, v, d).

    Returns y (b, d), new_K (b, h, n + 1, k), new_V (b, h, n + 1, v).
    """
    raise NotImplementedError
'''

STEPS = """import torch

def mha_step(x, prev_K, prev_V, W_q, W_k, W_v, W_o):
    q = torch.einsum("bd,hdk->bhk", x, W_q)
    k = torch.einsum("bd,hdk->bhk", x, W_k)
    v = torch.einsum("bd,hdv->bhv", x, W_v)
    new_K = torch.cat([prev_K, k.unsqueeze(-2)], dim=-2)
    new_V = torch.cat([prev_V, v.unsqueeze(-2)], dim=-2)
    logits = torch.einsum("bhk,bhnk->bhn", q, new_K)
    weights = torch.softmax(logits, dim=-1)
    o = torch.einsum("bhn,bhnv->bhv", weights, new_V)
    y = torch.einsum("bhv,hvd->bd", o, W_o)
    return y, new_K, new_V
"""

LOOP = """import torch

def mha_step(x, prev_K, prev_V, W_q, W_k, W_v, W_o):
    y, Ks, Vs = torch.zeros_like(x), [], []
    for h in range(W_q.shape[0]):
        K = torch.cat((prev_K[:, h], (x @ W_k[h])[:, None, :]), 1)
        V = torch.cat((prev_V[:, h], (x @ W_v[h])[:, None, :]), 1)
        s = (K * (x @ W_q[h])[:, None, :]).sum(-1)
        e = torch.exp(s - s.amax(dim=1, keepdim=True))
        a = e / e.sum(dim=1, keepdim=True)
        y = y + (a[..., None] * V).sum(1) @ W_o[h]
        Ks.append(K)
        Vs.append(V)
    return y, torch.stack(Ks, 1), torch.stack(Vs, 1)
"""

MATMUL = """import torch

def mha_step(x, prev_K, prev_V, W_q, W_k, W_v, W_o):
    row = x[:, None, None, :]
    q = row @ W_q
    new_K = torch.cat([prev_K, row @ W_k], dim=2)
    new_V = torch.cat([prev_V, row @ W_v], dim=2)
    a = torch.softmax(q @ new_K.transpose(2, 3), dim=3)
    return ((a @ new_V) @ W_o).sum(dim=1).squeeze(1), new_K, new_V
"""

SCALED = """import torch
import torch.nn.functional as F

def mha_step(x, prev_K, prev_V, W_q, W_k, W_v, W_o):
    b, h, n, _ = prev_K.shape
    K = prev_K.new_zeros(b, h, n + 1, W_k.size(2))
    V = prev_V.new_zeros(b, h, n + 1, W_v.size(2))
    K[:, :, :n], V[:, :, :n] = prev_K, prev_V
    K[:, :, n] = torch.tensordot(x, W_k, dims=([1], [1]))
    V[:, :, n] = torch.tensordot(x, W_v, dims=([1], [1]))
    q = torch.tensordot(x, W_q, dims=([1], [1])).unsqueeze(2)
    out = F.scaled_dot_product_attention(q, K, V).squeeze(2)
    return out.flatten(1) @ W_o.flatten(0, 1), K, V
"""


def reference(case: Case, *, scale: str = "none") -> tuple[Tensor, Tensor, Tensor]:
    """One token of multi-head attention with a cache (Shazeer 2019, 2.4.1)."""
    x, past_k, past_v, w_q, w_k, w_v, w_o = case.args
    q = torch.einsum("bd,hdk->bhk", x, w_q)
    k = torch.cat([past_k, torch.einsum("bd,hdk->bhk", x, w_k)[:, :, None]], dim=2)
    v = torch.cat([past_v, torch.einsum("bd,hdv->bhv", x, w_v)[:, :, None]], dim=2)
    rule = ScoreRule(scale=1.0 if scale == "none" else None)
    out = attend(q[:, :, None], k, v, rule).out
    return torch.einsum("bhv,hvd->bd", out[:, :, 0], w_o), k, v


def make(draw: Draw) -> Case:
    return Case(
        (
            draw.normal("batch", "model_dim"),
            draw.normal("batch", "head", "past", "qk_dim"),
            draw.normal("batch", "head", "past", "v_dim"),
            draw.normal("head", "model_dim", "qk_dim", scale=draw["model_dim"] ** -0.5),
            draw.normal("head", "model_dim", "qk_dim", scale=draw["model_dim"] ** -0.5),
            draw.normal("head", "model_dim", "v_dim", scale=draw["model_dim"] ** -0.5),
            draw.normal("head", "v_dim", "model_dim", scale=draw["v_dim"] ** -0.5),
        )
    )


EXERCISE = Exercise(
    id="mha-step",
    title="One step of multi-head attention",
    names=("mha_step",),
    task=TASK,
    starter=STARTER,
    reference=reference,
    right=(
        Right("einsum, step by step", STEPS),
        Right("one head after the other", LOOP),
        Right("broadcast matrix products", MATMUL),
        Right("scaled, with a kernel", SCALED),
    ),
    conventions=(SCALE,),
    words={
        **WORDS,
        "1": ("batch", "head", "position", "qk_dim"),
        "2": ("batch", "head", "position", "v_dim"),
    },
    trials=trials(make),
    probes=probes(make),
    hints=HINTS,
    mistakes=(
        *MISTAKES,
        Mistake(
            "all heads share the first head's keys",
            (
                "Every head compares its query with the same keys.",
                "Look at the head axis of the keys.",
                "That is multi-query attention; here each head has keys of its own.",
                "Keep the head axis of W_k and of the cache.",
            ),
            edits=(("q, new_K)", "q, new_K[:, :1].expand_as(new_K))"),),
        ),
        Mistake(
            "the keys are projected by `W_q`",
            (
                "The gradient never reaches W_k.",
                "Look at the projection of the keys.",
                "W_q has the shape of W_k, so nothing complains.",
                "Project the new key with W_k.",
            ),
            edits=((" x, W_k)", " x, W_q)"),),
        ),
        Mistake(
            "`W_q` and `W_k` swapped",
            (
                "The cache holds queries.",
                "Look at which weight makes the query and which the key.",
                "W_q has the shape of W_k, so nothing complains.",
                "q comes from W_q, k from W_k.",
            ),
            edits=((" x, W_k)", " x, W_q)"), (" x, W_q)\n    k", " x, W_k)\n    k")),
        ),
    ),
)
