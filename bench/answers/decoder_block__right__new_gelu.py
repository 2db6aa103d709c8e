import math
import torch
import torch.nn as nn
class DecoderBlock(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, dropout):
        super().__init__()
        for name in ("W_q", "W_k", "W_v", "W_o"):
            setattr(self, name, nn.Linear(d_model, d_model, bias=False))
        self.linear1, self.linear2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.drop, self.h = nn.Dropout(dropout), num_heads
    @staticmethod
    def gelu(x):
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))
    def forward(self, x):
        b, n, d = x.shape
        y = self.norm1(x)
        q, k, v = (w(y).reshape(b, n, self.h, -1) for w in (self.W_q, self.W_k, self.W_v))
        s = torch.einsum("bihd,bjhd->bhij", q, k) / (d / self.h) ** 0.5
        s = s + torch.full((n, n), -torch.inf, device=x.device, dtype=x.dtype).triu(1)
        o = torch.einsum("bhij,bjhd->bihd", s.softmax(-1), v).reshape(b, n, d)
        x = x + self.drop(self.W_o(o))
        return x + self.drop(self.linear2(self.gelu(self.linear1(self.norm2(x)))))
