import torch
from torch import nn


class MultiHeadSelfAttention(nn.Module):
    def __init__(self, input_size, hidden, num_heads, causal=False, dropout=0):
        super().__init__()
        if hidden % num_heads:
            raise ValueError
        self.h = num_heads
        self.q = nn.Linear(input_size, hidden)
        self.k = nn.Linear(input_size, hidden)
        self.v = nn.Linear(input_size, hidden)
        self.mix = nn.Linear(hidden, hidden)
        self.causal = causal
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, return_attention=False):
        b, t, _ = x.shape
        q, k, v = (f(x).reshape(b, t, self.h, -1).permute(0, 2, 1, 3).reshape(b * self.h, t, -1) for f in (self.q, self.k, self.v))
        attention = torch.einsum("nid,njd->nij", q, k) / q.size(-1) ** 0.5
        if self.causal:
            attention = attention.masked_fill(torch.ones(t, t, device=x.device).triu(1) == 1, float("-inf"))
        heads = self.dropout(torch.softmax(attention, -1)) @ v
        out = self.mix(heads.reshape(b, self.h, t, -1).permute(0, 2, 1, 3).reshape(b, t, -1))
        return (out, attention) if return_attention else out
