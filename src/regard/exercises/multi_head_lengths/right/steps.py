import math
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
        B, T = x.shape[0], x.shape[1]
        x = x.reshape(B, T, self.num_heads, -1)
        return x.transpose(1, 2)

    def combine_heads(self, x):
        B, T = x.shape[0], x.shape[2]
        x = x.transpose(1, 2)
        return x.reshape(B, T, -1)

    def forward(self, Q, K, V):
        q = self.split_heads(self.W_q(Q), self.qk_length)
        k = self.split_heads(self.W_k(K), self.qk_length)
        v = self.split_heads(self.W_v(V), self.value_length)
        scores = q @ k.transpose(-2, -1)
        scores = scores / math.sqrt(q.shape[-1])
        weights = torch.softmax(scores, dim=-1)
        heads = weights @ v
        joined = self.combine_heads(heads)
        out = self.W_o(joined)
        return out
