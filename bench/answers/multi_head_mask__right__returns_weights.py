import math
import torch
from torch import nn
class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads, self.d_k = num_heads, d_model // num_heads
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)
    def split_heads(self, x):
        return torch.stack(torch.split(x, self.d_k, dim=2), dim=1)
    def combine_heads(self, x):
        return torch.cat(torch.unbind(x, dim=1), dim=-1)
    def scaled_dot_product_attention(self, Q, K, V, mask=None):
        scores = torch.einsum("bhqd,bhkd->bhqk", Q, K) / math.sqrt(self.d_k)
        if mask is not None:
            visible = (mask if mask.dim() == 2 else mask.unsqueeze(1)).bool()
            scores = torch.where(visible, scores, torch.tensor(float("-inf"), dtype=scores.dtype, device=scores.device))
        weights = torch.softmax(scores, -1)
        weights = torch.where(torch.isnan(weights), torch.zeros_like(weights), weights)
        return weights @ V, weights
    def forward(self, Q, K, V, mask=None):
        out, weights = self.scaled_dot_product_attention(self.split_heads(self.W_q(Q)), self.split_heads(self.W_k(K)), self.split_heads(self.W_v(V)), mask)
        return self.W_o(self.combine_heads(out)), weights
