import torch
from torch import nn


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, 2 * d_model)
        self.W_o = nn.Linear(2 * d_model, d_model)

    def split_heads(self, x):
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def combine_heads(self, x):
        return x.transpose(1, 2).flatten(-2)

    def scaled_dot_product_attention(self, Q, K, V, mask=None):
        scores = torch.einsum("bhid,bhjd->bhij", Q, K) / V.shape[-1] ** 0.5
        if mask is not None:
            seen = mask.bool() if mask.dim() == 2 else mask.bool()[:, None]
            scores = scores.masked_fill(~seen, float("-inf"))
        return torch.nan_to_num(scores.softmax(-1)) @ V

    def forward(self, Q, K, V, mask=None):
        q, k, v = (self.split_heads(f(x)) for f, x in [(self.W_q, Q), (self.W_k, K), (self.W_v, V)])
        return self.W_o(self.combine_heads(self.scaled_dot_product_attention(q, k, v, mask)))
