import torch
from torch import nn
from torch.nn import functional as F

class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        assert d_model % num_heads == 0
        self.num_heads = num_heads
        self.d_k = d_model // num_heads
        self.d_v = 2 * self.d_k
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, num_heads * self.d_v, bias=False)
        self.W_o = nn.Linear(num_heads * self.d_v, d_model, bias=False)

    def forward(self, Q, K, V, mask=None):
        qs = self.W_q(Q).split(self.d_k, dim=2)
        ks = self.W_k(K).split(self.d_k, dim=2)
        vs = self.W_v(V).split(self.d_v, dim=2)
        out = []
        for q, k, v in zip(qs, ks, vs):
            s = torch.matmul(q, k.mT).div(self.d_k ** 0.5)
            if mask is not None:
                s = torch.where(mask == 0, torch.full_like(s, float("-inf")), s)
            out.append(torch.nan_to_num(torch.softmax(s, dim=2)) @ v)
        return self.W_o(torch.cat(out, dim=2))
