import torch
from torch import nn


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.d_k = d_model // num_heads
        self.W_q, self.W_k = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.W_v, self.W_o = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def split_heads(self, x):
        return x.split(self.d_k, dim=-1)  # a tuple of (batch, length, d_k)

    def combine_heads(self, parts):
        return torch.cat(parts, dim=-1)

    def scaled_dot_product_attention(self, q, k, v, mask=None):
        e = torch.bmm(q, k.permute(0, 2, 1)) * self.d_k ** (-1 / 2)
        if mask is None:
            return torch.bmm(e.softmax(2), v)
        seen = mask.bool() if mask.ndim == 3 else mask.bool().unsqueeze(0)
        top = e.masked_fill(~seen, -1e30).amax(dim=2, keepdim=True)
        p = torch.exp((e - top).masked_fill(~seen, -1e30)) * seen
        total = p.sum(dim=2, keepdim=True)
        return torch.bmm(p / total.masked_fill(total == 0, 1.0), v)

    def forward(self, Q, K, V, mask=None):
        triples = zip(
            self.split_heads(self.W_q(Q)), self.split_heads(self.W_k(K)), self.split_heads(self.W_v(V))
        )
        return self.W_o(self.combine_heads([self.scaled_dot_product_attention(*t, mask) for t in triples]))
