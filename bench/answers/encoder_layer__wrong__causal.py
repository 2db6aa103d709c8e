import torch
from torch import nn
import torch.nn.functional as F


class EncoderLayer(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, dropout):
        super().__init__()
        self.h, self.d = num_heads, d_model // num_heads
        for n in "qkvo":
            setattr(self, "W_" + n, nn.Linear(d_model, d_model, bias=False))
        self.linear1, self.linear2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, valid_lens=None):
        b, n, _ = x.shape
        q, k, v = (w(x).view(b, n, self.h, self.d).transpose(1, 2) for w in (self.W_q, self.W_k, self.W_v))
        s = q @ k.mT / self.d**0.5
        s = s.masked_fill(torch.ones(n, n, device=x.device).triu(1).bool(), -1e9)
        if valid_lens is not None:
            s = s.masked_fill((torch.arange(n, device=x.device) >= valid_lens[:, None])[:, None, None], -1e9)
        y = self.W_o((s.softmax(-1) @ v).transpose(1, 2).reshape(b, n, -1))
        x = self.norm1(x + self.dropout(y))
        return self.norm2(x + self.dropout(self.linear2(F.relu(self.linear1(x)))))
