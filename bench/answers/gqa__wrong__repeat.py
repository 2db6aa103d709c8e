import torch
from torch import nn
from torch.nn import functional as F

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
        q = self.W_q(x).reshape(b, n, self.n_head, self.d).transpose(1, 2)
        k = self.W_k(x).reshape(b, n, self.n_kv_head, self.d).transpose(1, 2)
        v = self.W_v(x).reshape(b, n, self.n_kv_head, self.d).transpose(1, 2)
        k, v = (t.repeat(1, self.n_head // self.n_kv_head, 1, 1) for t in (k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.W_o(out.transpose(1, 2).reshape(b, n, -1))
