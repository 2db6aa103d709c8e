import torch
from torch import nn


class CachedAttention(nn.Module):
    def __init__(self, d_model, n_head):
        super().__init__()
        self.n_head, self.hd = n_head, d_model // n_head
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x, cache=None):
        b, n, dm = x.shape
        q, k, v = (w(x).view(b, n, self.n_head, self.hd).transpose(1, 2) for w in (self.W_q, self.W_k, self.W_v))
        if cache is not None:
            k = torch.cat([cache[0], k], 2)
            v = torch.cat([cache[0], v], 2)
        T = k.shape[2]
        mask = torch.ones(n, T, dtype=torch.bool, device=x.device).tril(T - n)
        s = (q @ k.mT / self.hd**0.5).masked_fill(~mask, -torch.inf)
        return self.W_o((s.softmax(-1) @ v).transpose(1, 2).reshape(b, n, dm)), (k, v)
