import torch
from torch import nn


class GroupedQueryAttention(nn.Module):
    def __init__(self, d_model, n_head, n_kv_head):
        super().__init__()
        self.n_head, self.n_kv_head, self.d = n_head, n_kv_head, d_model // n_head
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, n_kv_head * self.d, bias=False)
        self.W_v = nn.Linear(d_model, n_kv_head * self.d, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x):
        b, n, _ = x.shape
        q = self.W_q(x).view(b, n, self.n_head, self.d).transpose(1, 2)
        k = self.W_k(x).view(b, n, self.n_kv_head, self.d).transpose(1, 2)
        v = self.W_v(x).view(b, n, self.n_kv_head, self.d).transpose(1, 2)
        k = k.repeat_interleave(self.n_head // self.n_kv_head, 1)
        s = (q @ k.mT / self.d**0.5).masked_fill(torch.ones(n, n, device=x.device).triu(1).bool(), -1e9)
        y = s.softmax(-1) @ v[:, :1]
        return self.W_o(y.transpose(1, 2).reshape(b, n, -1))
