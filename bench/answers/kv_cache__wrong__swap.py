import math
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
    def split_heads(self, t):
        return t.view(t.size(0), t.size(1), self.n_head, -1).permute(0, 2, 1, 3)
    def forward(self, x, cache=None):
        query, key, value = map(self.split_heads, (self.W_q(x), self.W_k(x), self.W_v(x)))
        if cache is not None:
            past_value, past_key = cache
            key = torch.cat((past_key, key), dim=-2)
            value = torch.cat((past_value, value), dim=-2)
        nd, ns = query.size(-2), key.size(-2)
        w = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(value.size(-1))
        b = torch.tril(torch.ones(ns, ns, device=x.device, dtype=torch.bool))[ns - nd : ns, :ns]
        w = torch.where(b, w, torch.tensor(-1e4, dtype=w.dtype, device=w.device))
        a = torch.matmul(nn.Softmax(dim=-1)(w), value)
        a = a.permute(0, 2, 1, 3).contiguous()
        return self.W_o(a.view(*a.size()[:-2], -1)), (key, value)
