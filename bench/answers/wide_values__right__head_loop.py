import torch
from torch import nn
class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.h = num_heads
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, 2 * d_model, bias=False)
        self.W_o = nn.Linear(2 * d_model, d_model, bias=False)
    def forward(self, Q, K, V, mask=None):
        q, k, v = self.W_q(Q), self.W_k(K), self.W_v(V)
        dk, dv = q.shape[-1] // self.h, v.shape[-1] // self.h
        heads = []
        for i in range(self.h):
            s = torch.einsum("bqd,bkd->bqk", q[..., i * dk : (i + 1) * dk], k[..., i * dk : (i + 1) * dk]) * dk**-0.5
            if mask is not None:
                s = torch.where(mask.bool(), s, torch.tensor(float("-inf"), dtype=s.dtype, device=s.device))
            a = torch.nan_to_num(s.softmax(-1))
            heads.append(a @ v[..., i * dv : (i + 1) * dv])
        return self.W_o(torch.cat(heads, -1))
