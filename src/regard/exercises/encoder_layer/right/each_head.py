import math
import torch
from torch import nn

class EncoderLayer(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, dropout):
        super().__init__()
        self.num_heads = num_heads
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
        self.linear1, self.linear2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, valid_lens=None):
        b, n, d = x.shape
        w = d // self.num_heads
        Q, K, V = self.W_q(x), self.W_k(x), self.W_v(x)
        seen = torch.ones(b, 1, n, dtype=torch.bool, device=x.device)
        if valid_lens is not None:
            seen = torch.arange(n, device=x.device).expand(b, n).unsqueeze(1) < valid_lens.reshape(b, 1, 1)
        out = []
        for h in range(self.num_heads):
            part = slice(h * w, h * w + w)
            s = torch.bmm(Q[:, :, part], K[:, :, part].mT) / w ** 0.5
            a = torch.softmax(torch.where(seen, s, torch.full_like(s, -1e4)), dim=-1)
            out.append(torch.bmm(self.dropout(a), V[:, :, part]))
        y = self.norm1(x + self.dropout(self.W_o(torch.cat(out, dim=-1))))
        z = torch.clamp(self.linear1(y), min=0)
        return self.norm2(y + self.dropout(self.linear2(z)))
