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
        B, T, _ = x.size()
        return x.view(B, T, self.num_heads, vec_length).transpose(1, 2)
    def combine_heads(self, x):
        B, H, T, L = x.size()
        return x.transpose(1, 2).contiguous().view(B, T, H * L)
    def scaled_dot_product_attention(self, Q, K, V):
        return torch.softmax(Q @ K.transpose(-2, -1) / int(self.qk_length ** 0.5), dim=-1) @ V
    def forward(self, Q, K, V):
        Q = self.split_heads(self.W_q(Q), self.qk_length)
        K = self.split_heads(self.W_k(K), self.qk_length)
        V = self.split_heads(self.W_v(V), self.value_length)
        return self.W_o(self.combine_heads(self.scaled_dot_product_attention(Q, K, V)))
