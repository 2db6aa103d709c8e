import torch
from torch import nn


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads, self.d_k = num_heads, d_model // num_heads
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(d_model, d_model) for _ in "qkvo")

    def split_heads(self, x):
        return x.unflatten(-1, (self.num_heads, self.d_k)).movedim(2, 1)

    def combine_heads(self, x):
        return x.movedim(1, 2).flatten(2)

    def scaled_dot_product_attention(self, q, k, v, mask=None):
        weights = torch.softmax(torch.einsum("bhid,bhjd->bhij", q, k) / self.d_k**0.5, dim=-1)
        if mask is not None:
            weights = weights * (mask if mask.ndim == 2 else mask[:, None]).to(weights.dtype)
        return torch.einsum("bhij,bhjd->bhid", weights, v)

    def forward(self, Q, K, V, mask=None):
        q, k, v = self.split_heads(self.W_q(Q)), self.split_heads(self.W_k(K)), self.split_heads(self.W_v(V))
        return self.W_o(self.combine_heads(self.scaled_dot_product_attention(q, k, v, mask)))
