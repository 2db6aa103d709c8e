import torch
from torch import nn


class CachedAttention(nn.Module):
    def __init__(self, d_model, n_head):
        super().__init__()
        self.n_head = n_head
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x, cache=None):
        B, n, D = x.shape
        d = D // self.n_head
        q = self.W_q(x).reshape(B, n, self.n_head, d).transpose(1, 2)
        k = self.W_k(x).reshape(B, n, self.n_head, d).transpose(1, 2)
        v = self.W_v(x).reshape(B, n, self.n_head, d).transpose(1, 2)

        past = 0
        K, V = k, v
        if cache is not None:
            past = cache[0].shape[2]
            K = torch.cat([cache[0], k], dim=2)
            V = torch.cat([cache[0], v], dim=2)

        row = torch.arange(n, device=x.device)[:, None] + past
        col = torch.arange(past + n, device=x.device)[None, :]
        att = (q @ K.mT) * d ** -0.5
        att = att.masked_fill(col > row, float("-inf")).softmax(-1)
        y = (att @ V).transpose(1, 2).reshape(B, n, D)
        return self.W_o(y), (K, V)
