import torch
from torch import nn


class MultiHeadSelfAttention(nn.Module):
    def __init__(self, input_size, hidden, num_heads, causal=False, dropout=0):
        super().__init__()
        if hidden % num_heads:
            raise ValueError("heads")
        self.n, self.causal = num_heads, causal
        self.q = nn.Linear(input_size, hidden)
        self.k = nn.Linear(input_size, hidden)
        self.v = nn.Linear(input_size, hidden)
        self.mix = nn.Linear(hidden, hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, return_attention=False):
        t = x.shape[1]
        q = torch.cat(self.q(x).chunk(self.n, -1), 0)
        k = torch.cat(self.k(x).chunk(self.n, -1), 0)
        v = torch.cat(self.v(x).chunk(self.n, -1), 0)
        s = q @ k.mT / q.shape[-1] ** 0.5
        if self.causal:
            s = s.masked_fill(torch.ones(t, t, device=x.device).triu(1).bool(), float("-inf"))
        a = s.softmax(-1)
        y = self.mix(torch.cat((self.dropout(a) @ v).chunk(self.n, 0), -1))
        return (y, a) if return_attention else y
