import math

import torch
from torch import nn


class EncoderLayer(nn.Module):
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
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def attention(self, x, valid_lens):
        b, n, d = x.shape
        dk = d // self.num_heads
        q, k, v = [layer(x).view(b, n, self.num_heads, dk).transpose(1, 2) for layer in (self.W_q, self.W_k, self.W_v)]
        scores = q @ k.transpose(-1, -2) / math.sqrt(dk)
        if valid_lens is not None:
            pad = torch.arange(n, device=x.device)[None, :] >= valid_lens[:, None]
            scores = scores.masked_fill(pad[:, None, None, :], -1e9)
        y = scores.softmax(-1) @ v
        return self.W_o(y.transpose(1, 2).reshape(b, n, d))

    def forward(self, x, valid_lens=None):
        x = x + self.dropout(self.attention(x, valid_lens))
        y = self.linear2(torch.relu(self.linear1(self.norm1(x))))
        return self.norm2(x + self.dropout(y))
