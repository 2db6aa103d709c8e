import torch
from torch import nn
from torch.nn import functional as F

class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads, self.d_k, self.d_v = num_heads, d_model // num_heads, 2 * d_model // num_heads
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, num_heads * self.d_v, bias=False)
        self.W_o = nn.Linear(num_heads * self.d_v, d_model, bias=False)

    def forward(self, Q, K, V, mask=None):
        q = self.W_q(Q).unflatten(-1, (self.num_heads, self.d_k))
        k = self.W_k(K).unflatten(-1, (self.num_heads, self.d_k))
        v = self.W_v(V).unflatten(-1, (self.num_heads, self.d_v))
        s = torch.einsum("bqhd,bkhd->bhqk", q, k) / self.d_k ** 0.5
        if mask is not None:
            s = s.masked_fill((mask if mask.dim() == 2 else mask[:, None]) == 0, -1e4)
        first = torch.einsum("bhqk,bkhv->bqhv", s.softmax(-1), v[..., :self.d_k])
        second = torch.einsum("bhqk,bkhv->bqhv", s.softmax(-1), v[..., self.d_k:])
        return self.W_o(torch.cat([first, second], dim=-1).flatten(-2))
