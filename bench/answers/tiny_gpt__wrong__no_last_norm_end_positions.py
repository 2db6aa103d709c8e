import math

import torch
from torch import nn
from torch.nn import functional as F


class CausalHeads:
    """Splits, attends and joins."""

    def __init__(self, num_heads):
        self.num_heads = num_heads

    def __call__(self, q, k, v):
        outs = []
        n = q.shape[1]
        visible = torch.ones(n, n, dtype=torch.bool, device=q.device).tril()
        for a, b, c in zip(*(t.chunk(self.num_heads, -1) for t in (q, k, v))):
            s = (a @ b.mT / math.sqrt(a.shape[-1])).masked_fill(~visible, float("-inf"))
            outs.append(s.softmax(-1) @ c)
        return torch.cat(outs, -1)


class DecoderBlock(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, dropout):
        super().__init__()
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)
        self.linear1 = nn.Linear(d_model, d_ff)
        self.linear2 = nn.Linear(d_ff, d_model)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.drop = nn.Dropout(dropout)
        self.heads = CausalHeads(num_heads)

    def forward(self, x):
        z = self.norm1(x)
        x = x + self.drop(self.W_o(self.heads(self.W_q(z), self.W_k(z), self.W_v(z))))
        return x + self.drop(self.linear2(F.gelu(self.linear1(self.norm2(x)))))


class TinyGPT(nn.Module):
    def __init__(self, vocab, d_model, num_heads, d_ff, n_layer, context):
        super().__init__()
        self.context = context
        self.tokens = nn.Embedding(vocab, d_model)
        self.positions = nn.Embedding(context, d_model)
        self.blocks = nn.ModuleList([DecoderBlock(d_model, num_heads, d_ff, 0.0) for _ in range(n_layer)])
        self.norm = nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, vocab, bias=False)

    def forward(self, ids):
        n = ids.shape[1]
        steps = torch.arange(self.context - n, self.context, device=ids.device)
        x = self.tokens(ids) + self.positions(steps)
        for block in self.blocks:
            x = block(x)
        return self.head(x)
