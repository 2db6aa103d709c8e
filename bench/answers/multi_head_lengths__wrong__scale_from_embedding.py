import torch
from torch import nn
from torch.nn import functional as F


class MultiHeadAttention(nn.Module):
    def __init__(self, num_heads, embedding_dim, qk_length, value_length):
        super().__init__()
        self.num_heads = num_heads
        self.qk_length = qk_length
        self.value_length = value_length
        self.d_k = embedding_dim / num_heads
        self.W_q = nn.Linear(embedding_dim, num_heads * qk_length)
        self.W_k = nn.Linear(embedding_dim, num_heads * qk_length)
        self.W_v = nn.Linear(embedding_dim, num_heads * value_length)
        self.W_o = nn.Linear(num_heads * value_length, embedding_dim)

    def split_heads(self, x, vec_length):
        batch, length, _ = x.size()
        return x.view(batch, length, self.num_heads, vec_length).transpose(1, 2)

    def combine_heads(self, x):
        batch, _, length, size = x.size()
        return x.transpose(1, 2).contiguous().view(batch, length, self.num_heads * size)

    def forward(self, Q, K, V):
        Q = self.split_heads(self.W_q(Q), self.qk_length)
        K = self.split_heads(self.W_k(K), self.qk_length)
        V = self.split_heads(self.W_v(V), self.value_length)
        attn = F.softmax(torch.matmul(Q, K.transpose(-2, -1)) / self.d_k ** 0.5, dim=-1)
        return self.W_o(self.combine_heads(torch.matmul(attn, V)))
