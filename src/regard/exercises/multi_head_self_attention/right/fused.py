import torch
from torch import nn
from torch.nn import functional as F

class MultiHeadSelfAttention(nn.Module):
    def __init__(self, input_size, hidden, num_heads, causal=False, dropout=0):
        super().__init__()
        size, rest = divmod(hidden, num_heads)
        if rest:
            raise ValueError("hidden must be divisible by num_heads")
        self.heads, self.size, self.causal, self.dropout = num_heads, size, causal, dropout
        self.q = nn.LazyLinear(hidden)
        self.k = nn.LazyLinear(hidden)
        self.v = nn.LazyLinear(hidden)
        self.mix = nn.LazyLinear(hidden)

    def split(self, y):
        return y.unflatten(-1, (self.heads, self.size)).permute(0, 2, 1, 3)

    def forward(self, x, return_attention=False):
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        p = self.dropout if self.training else 0.0
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=self.causal)
        out = self.mix(out.permute(0, 2, 1, 3).flatten(2))
        if not return_attention:
            return out
        n = x.shape[1]
        eye = torch.eye(n, dtype=x.dtype, device=x.device).expand(len(x), self.heads, n, n)
        attention = F.scaled_dot_product_attention(q, k, eye, is_causal=self.causal)
        return out, attention.reshape(-1, n, n)
