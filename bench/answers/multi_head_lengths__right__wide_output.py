import math
import torch
import torch.nn as nn
class MultiHeadAttention(nn.Module):
    """Output: (B, Tq, num_heads * value_length)."""
    def __init__(self, num_heads, embedding_dim, qk_length, value_length):
        super().__init__()
        self.num_heads, self.qk_length, self.value_length = num_heads, qk_length, value_length
        self.W_q = nn.Linear(embedding_dim, num_heads * qk_length)
        self.W_k = nn.Linear(embedding_dim, num_heads * qk_length)
        self.W_v = nn.Linear(embedding_dim, num_heads * value_length)
        self.W_o = nn.Linear(num_heads * value_length, num_heads * value_length)
    def split_heads(self, x, vec_length):
        B, T, _ = x.shape
        return x.view(B, T, self.num_heads, vec_length).transpose(1, 2)
    def combine_heads(self, x):
        B, H, T, L = x.shape
        return x.transpose(1, 2).reshape(B, T, H * L)
    def forward(self, Q, K, V):
        q = self.split_heads(self.W_q(Q), self.qk_length)
        k = self.split_heads(self.W_k(K), self.qk_length)
        v = self.split_heads(self.W_v(V), self.value_length)
        return self.W_o(self.combine_heads((q @ k.mT / math.sqrt(self.qk_length)).softmax(-1) @ v))
