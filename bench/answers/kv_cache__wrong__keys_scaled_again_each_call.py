import math

import torch
from torch import nn


class CachedAttention(nn.Module):
    """Layers W_q, W_k, W_v, W_o, without bias."""

    def __init__(self, d_model, n_head):
        super().__init__()
        self.n_head = n_head
        self.d = d_model // n_head
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)

    def cut(self, t):
        return t.view(t.shape[0], t.shape[1], self.n_head, self.d).transpose(1, 2)

    def forward(self, x, cache=None):
        q, K, V = self.cut(self.W_q(x)), self.cut(self.W_k(x)), self.cut(self.W_v(x))
        if cache is not None:
            K = torch.cat([cache[0], K], dim=2)
            V = torch.cat([cache[1], V], dim=2)
        K = K / math.sqrt(self.d)
        scores = q @ K.transpose(-1, -2)
        n, total = scores.shape[-2:]
        see = torch.ones(n, total, dtype=torch.bool, device=x.device).tril(total - n)
        w = scores.masked_fill(~see, float("-inf")).softmax(-1)
        y = (w @ V).transpose(1, 2).flatten(2)
        return self.W_o(y), (K, V)
