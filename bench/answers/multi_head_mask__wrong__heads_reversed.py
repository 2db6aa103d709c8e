import torch
from torch import nn


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.h, self.d_k = num_heads, d_model // num_heads
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(d_model, d_model) for _ in range(4))

    def scaled_dot_product_attention(self, Q, K, V, mask=None):
        s = Q @ K.mT / self.d_k**0.5
        if mask is not None:
            s = s.masked_fill((mask if mask.dim() == 2 else mask.unsqueeze(1)) == 0, float("-inf"))
        return torch.nan_to_num(s.softmax(-1)) @ V

    def split_heads(self, x):
        return x.unflatten(-1, (self.h, -1)).transpose(1, 2)

    def combine_heads(self, x):
        out = x[:, 0]
        for i in range(1, self.h):
            out = torch.cat([x[:, i], out], -1)
        return out

    def forward(self, Q, K, V, mask=None):
        q, k, v = self.split_heads(self.W_q(Q)), self.split_heads(self.W_k(K)), self.split_heads(self.W_v(V))
        return self.W_o(self.combine_heads(self.scaled_dot_product_attention(q, k, v, mask)))
