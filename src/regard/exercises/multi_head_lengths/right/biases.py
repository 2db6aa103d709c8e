import math
import torch
from torch import nn

class MultiHeadAttention(nn.Module):

    def __init__(self, num_heads, embedding_dim, qk_length, value_length):
        super().__init__()
        self.num_heads, self.qk_length, self.value_length = num_heads, qk_length, value_length
        self.W_q = nn.Linear(embedding_dim, num_heads * qk_length)
        self.W_k = nn.Linear(embedding_dim, num_heads * qk_length)
        self.W_v = nn.Linear(embedding_dim, num_heads * value_length)
        self.W_o = nn.Linear(num_heads * value_length, embedding_dim)

    def split_heads(self, x, vec_length):
        B, T, C = x.size()
        assert C // self.num_heads == vec_length
        return x.view(B, T, self.num_heads, vec_length).permute(0, 2, 1, 3)

    def combine_heads(self, x):
        B, H, T, C = x.size()
        return x.permute(0, 2, 1, 3).contiguous().view(B, T, H * C)

    def scaled_dot_product_attention(self, Q, K, V, mask=None):
        A = torch.einsum("bhqd,bhkd->bhqk", Q / math.sqrt(self.qk_length), K)
        if mask is not None:
            A = A.masked_fill(mask == 0, float("-inf"))
        return torch.einsum("bhqk,bhkv->bhqv", nn.Softmax(dim=-1)(A), V)

    def forward(self, Q, K, V, mask=None):
        Q, K, V = (self.split_heads(w(x), n) for w, x, n in (
            (self.W_q, Q, self.qk_length), (self.W_k, K, self.qk_length), (self.W_v, V, self.value_length)))
        return self.W_o(self.combine_heads(self.scaled_dot_product_attention(Q, K, V, mask)))
