import math
import torch
from torch import nn
import torch.nn.functional as F
class MultiHeadAttention(nn.Module):
    def __init__(self, num_heads, embedding_dim, qk_length, value_length):
        super().__init__()
        self.num_heads = num_heads
        self.qk_length = qk_length
        self.value_length = value_length
        self.W_q = nn.Linear(embedding_dim, num_heads * qk_length)
        self.W_k = nn.Linear(embedding_dim, num_heads * qk_length)
        self.W_v = nn.Linear(embedding_dim, num_heads * value_length)
        self.W_o = nn.Linear(num_heads * value_length, embedding_dim)
    def split_heads(self, x, vec_length):
        return x.reshape(x.shape[0], x.shape[1], self.num_heads, vec_length).permute(0, 2, 1, 3)
    def combine_heads(self, x):
        return x.permute(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)
    def forward(self, Q, K, V):
        B = Q.shape[0]
        q = self.split_heads(self.W_q(Q), self.qk_length).flatten(0, 1)
        k = self.split_heads(self.W_k(K), self.qk_length).flatten(0, 1)
        v = self.split_heads(self.W_v(V), self.value_length).flatten(0, 1)
        att = F.softmax(torch.bmm(q, k.transpose(1, 2)) / math.sqrt(self.qk_length), dim=2)
        return self.W_o(self.combine_heads(torch.bmm(att, v).view(B, self.num_heads, -1, self.value_length)))
