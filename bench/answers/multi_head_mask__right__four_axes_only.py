import torch
from torch import nn
class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.h = num_heads
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)
        self.W_o = nn.Linear(d_model, d_model)
    def split_heads(self, x):
        b, l, d = x.shape
        return x.reshape(b, l, self.h, d // self.h).permute(0, 2, 1, 3)
    def combine_heads(self, x):
        b, h, l, d = x.shape
        return x.permute(0, 2, 1, 3).reshape(b, l, h * d)
    def scaled_dot_product_attention(self, Q, K, V, mask=None):
        scores = Q @ K.transpose(-1, -2) / Q.size(-1) ** 0.5
        if mask is not None:
            mask = mask.expand(scores.shape)
            scores = scores.masked_fill(~mask.bool(), float("-inf"))
        p = scores.softmax(-1)
        return p @ V, p
    def forward(self, Q, K, V, mask=None):
        out, _ = self.scaled_dot_product_attention(self.split_heads(self.W_q(Q)), self.split_heads(self.W_k(K)), self.split_heads(self.W_v(V)), mask)
        return self.W_o(self.combine_heads(out))
