import torch
from torch import nn

class MultiHeadAttention(nn.Module):
    def __init__(self, num_heads, embedding_dim, qk_length, value_length):
        super().__init__()
        self.num_heads, self.qk_length, self.value_length = num_heads, qk_length, value_length
        self.W_q = nn.Linear(embedding_dim, num_heads * qk_length, bias=False)
        self.W_k = nn.Linear(embedding_dim, num_heads * qk_length, bias=False)
        self.W_v = nn.Linear(embedding_dim, num_heads * value_length, bias=False)
        self.W_o = nn.Linear(num_heads * value_length, embedding_dim, bias=False)

    def split_heads(self, x, vec_length):
        return torch.stack(x.split(vec_length, dim=-1), dim=1)

    def combine_heads(self, x):
        return torch.cat(x.unbind(dim=1), dim=-1)

    def forward(self, Q, K, V):
        q = self.split_heads(self.W_q(Q), self.qk_length)
        k = self.split_heads(self.W_k(K), self.qk_length)
        v = self.split_heads(self.W_v(V), self.value_length)
        return self.W_o(self.combine_heads(nn.functional.scaled_dot_product_attention(q, k, v)))
