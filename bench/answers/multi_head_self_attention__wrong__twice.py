import torch
import torch.nn as nn
class MultiHeadSelfAttention(nn.Module):
    def __init__(self, input_size, hidden, num_heads, causal=False, dropout=0):
        super().__init__()
        if hidden % num_heads != 0:
            raise ValueError("hidden must be divisible by num_heads")
        self.q, self.k, self.v = nn.Linear(input_size, hidden), nn.Linear(input_size, hidden), nn.Linear(input_size, hidden)
        self.mix = nn.Linear(hidden, hidden)
        self.num_heads = num_heads
        self.head_size = hidden // num_heads
        self.scale = self.head_size ** 0.5
        self.causal = causal
        self.dropout = nn.Dropout(dropout)
    def forward(self, x, return_attention=False):
        bs, seq, _ = x.shape
        q = self.q(x).view(bs, seq, self.num_heads, self.head_size).transpose(1, 2).reshape(bs * self.num_heads, seq, self.head_size)
        k = self.k(x).view(bs, seq, self.num_heads, self.head_size).transpose(1, 2).reshape(bs * self.num_heads, seq, self.head_size)
        v = self.v(x).view(bs, seq, self.num_heads, self.head_size).transpose(1, 2).reshape(bs * self.num_heads, seq, self.head_size)
        scores = torch.bmm(q, k.transpose(1, 2)) / self.scale
        if self.causal:
            mask = torch.triu(torch.ones(seq, seq, device=x.device), diagonal=1).bool()
            scores = scores.masked_fill(mask, float("-inf"))
        probs = torch.softmax(scores, dim=-1)
        probs = self.dropout(probs)
        out = torch.bmm(probs, v)
        out = out.view(bs, self.num_heads, seq, self.head_size).transpose(1, 2).reshape(bs, seq, -1)
        out = self.mix(out)
        if return_attention:
            return out, torch.softmax(probs, -1)
        return out
