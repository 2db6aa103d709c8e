import torch
from torch import nn
class MultiHeadSelfAttention(nn.Module):
    def __init__(self, input_size, hidden, num_heads, causal=False, dropout=0):
        super().__init__()
        if hidden % num_heads:
            raise ValueError(f"{hidden} % {num_heads}")
        self.q = nn.Linear(input_size, hidden)
        self.k = nn.Linear(input_size, hidden)
        self.v = nn.Linear(input_size, hidden)
        self.mix = nn.Linear(hidden, hidden)
        self.h, self.causal, self.drop = num_heads, causal, nn.Dropout(dropout)
    def forward(self, x, return_attention=False):
        heads, tables = [], []
        for q, k, v in zip(self.q(x).chunk(self.h, -1), self.k(x).chunk(self.h, -1), self.v(x).chunk(self.h, -1)):
            s = q @ k.mT / q.shape[-1] ** 0.5
            if self.causal:
                s = s + torch.full(s.shape[-2:], -float("inf")).triu(1)
            a = s.softmax(-1)
            tables.append(a)
            heads.append(self.drop(a) @ v)
        out = self.mix(torch.cat(heads, -1))
        return (out, torch.stack(tables, 1).flatten(0, 1)) if return_attention else out
