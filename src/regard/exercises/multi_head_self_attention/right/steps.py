import math
import torch
from torch import nn

class MultiHeadSelfAttention(nn.Module):
    def __init__(self, input_size, hidden, num_heads, causal=False, dropout=0):
        super().__init__()
        if hidden % num_heads != 0:
            raise ValueError("hidden must be a multiple of num_heads")
        self.hidden = hidden
        self.num_heads = num_heads
        self.causal = causal
        self.q = nn.Linear(input_size, hidden)
        self.k = nn.Linear(input_size, hidden)
        self.v = nn.Linear(input_size, hidden)
        self.mix = nn.Linear(hidden, hidden)
        self.dropout = nn.Dropout(dropout)

    def split(self, y):
        B, T = y.shape[:2]
        y = y.reshape(B, T, self.num_heads, -1)
        return y.transpose(1, 2)

    def join(self, y):
        B, T = y.shape[0], y.shape[2]
        y = y.transpose(1, 2)
        return y.reshape(B, T, -1)

    def forward(self, x, return_attention=False):
        q = self.split(self.q(x))
        k = self.split(self.k(x))
        v = self.split(self.v(x))
        scores = torch.matmul(q, k.transpose(-2, -1))
        scores = scores / math.sqrt(q.shape[-1])
        if self.causal:
            ones = torch.ones(x.shape[1], x.shape[1], device=x.device)
            future = torch.triu(ones, diagonal=1).bool()
            scores = scores.masked_fill(future, float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        heads = torch.matmul(self.dropout(weights), v)
        out = self.mix(self.join(heads))
        if return_attention:
            attention = weights.flatten(0, 1)
            return out, attention
        return out
