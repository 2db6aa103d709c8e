import math
import torch
from torch import nn
from torch.nn import functional as F

class DecoderBlock(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, dropout):
        super().__init__()
        self.num_heads = num_heads
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
        self.linear1, self.linear2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        h = self.norm1(x)
        w = x.shape[-1] // self.num_heads
        Q, K, V = self.W_q(h), self.W_k(h), self.W_v(h)
        rows = []
        for i in range(x.shape[1]):
            parts = []
            for a in range(0, x.shape[-1], w):
                s = torch.einsum("bd,bjd->bj", Q[:, i, a:a + w], K[:, :i + 1, a:a + w]) / math.sqrt(w)
                parts.append(torch.einsum("bj,bjd->bd", F.softmax(s, dim=1), V[:, :i + 1, a:a + w]))
            rows.append(torch.cat(parts, dim=-1))
        x = x + self.dropout(self.W_o(torch.stack(rows, dim=1)))
        u = self.linear1(self.norm2(x))
        u = u * 0.5 * (1 + torch.erf(u / math.sqrt(2)))
        return x + self.dropout(self.linear2(u))
