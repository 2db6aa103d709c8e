import torch
from torch import nn


class DecoderBlock(nn.Module):
    """Layers W_q, W_k, W_v, W_o (no bias), linear1, linear2, norm1, norm2."""

    def __init__(self, d_model, num_heads, d_ff, dropout):
        super().__init__()
        self.num_heads = num_heads
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)
        self.linear1 = nn.Linear(d_model, d_ff)
        self.linear2 = nn.Linear(d_ff, d_model)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.dropout1, self.dropout2 = nn.Dropout(dropout), nn.Dropout(dropout)

    def attention(self, qk, v):
        B, T, C = qk.size()
        hs = C // self.num_heads
        q = self.W_q(qk).view(B, T, self.num_heads, hs).transpose(1, 2)
        k = self.W_k(qk).view(B, T, self.num_heads, hs).transpose(1, 2)
        v = self.W_v(v).view(B, T, self.num_heads, hs).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * hs ** -0.5
        mask = torch.tril(torch.ones(T, T, device=qk.device)).view(1, 1, T, T)
        att = att.masked_fill(mask == 0, float("-inf"))
        y = torch.softmax(att, dim=-1) @ v
        return self.W_o(y.transpose(1, 2).contiguous().view(B, T, C))

    def forward(self, x):
        normed = self.norm1(x)
        x = x + self.dropout1(self.attention(normed, x))
        h = nn.functional.gelu(self.linear1(self.norm2(x)))
        return x + self.dropout2(self.linear2(h))
