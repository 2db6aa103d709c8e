import math
import torch
import torch.nn as nn
from torch.nn import functional as F
class MultiHeadSelfAttention(nn.Module):
    def __init__(self, input_size, hidden, num_heads, causal=False, dropout=0):
        super().__init__()
        if hidden % num_heads != 0: raise ValueError
        self.q = nn.Linear(input_size, hidden, bias=True)
        self.k = nn.Linear(input_size, hidden, bias=True)
        self.v = nn.Linear(input_size, hidden, bias=True)
        self.mix = nn.Linear(hidden, hidden, bias=True)
        self.attn_dropout = nn.Dropout(dropout)
        self.n_head = num_heads
        self.causal = causal
        self.register_buffer("bias", torch.tril(torch.ones(1024, 1024)).view(1, 1, 1024, 1024))
    def forward(self, x, return_attention=False):
        B, T, _ = x.size()
        q, k, v = self.q(x), self.k(x), self.v(x)
        C = q.size(-1)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        if self.causal:
            att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        y = self.attn_dropout(att) @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        y = self.mix(y)
        return (y, att.view(B * self.n_head, T, T)) if return_attention else y
