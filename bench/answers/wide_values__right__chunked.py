import math
import torch
from torch import nn
class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads, self.d_k = num_heads, d_model // num_heads
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, 2 * d_model)
        self.W_o = nn.Linear(2 * d_model, d_model)
    def split_heads(self, x):
        return torch.stack(x.chunk(self.num_heads, -1), 1)
    def combine_heads(self, x):
        return torch.cat(x.unbind(1), -1)
    def scaled_dot_product_attention(self, Q, K, V, mask=None):
        scores = Q @ K.transpose(-2, -1) / math.sqrt(self.d_k)
        if mask is not None:
            mask = mask if mask.dim() == 2 else mask.unsqueeze(1)
            scores = scores.masked_fill(mask == 0, -1e9)
        return scores.softmax(-1) @ V
    def forward(self, Q, K, V, mask=None):
        q, k, v = self.split_heads(self.W_q(Q)), self.split_heads(self.W_k(K)), self.split_heads(self.W_v(V))
        return self.W_o(self.combine_heads(self.scaled_dot_product_attention(q, k, v, mask)))
