import torch
import torch.nn as nn
import torch.nn.functional as F
class DecoderBlock(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, dropout):
        super().__init__()
        self.W_q, self.W_k, self.W_v, self.W_o = [nn.Linear(d_model, d_model, bias=False) for _ in range(4)]
        self.linear1, self.linear2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.num_heads, self.p = num_heads, dropout
    def _norm(self, x, norm):
        mean = x.mean(-1, keepdim=True)
        var = ((x - mean) ** 2).mean(-1, keepdim=True)
        return (x - mean) * torch.rsqrt(var + norm.eps) * norm.weight + norm.bias
    def _rows(self, x):
        # row after row, as in decoding
        dk = x.shape[-1] // self.num_heads
        q, k, v = self.W_q(x), self.W_k(x), self.W_v(x)
        outs = []
        for i in range(x.shape[1]):
            parts = []
            for h in range(self.num_heads):
                s = slice(h * dk, h * dk + dk)
                w = torch.softmax((k[:, : i + 1, s] @ q[:, i, s].unsqueeze(-1)).squeeze(-1) / dk ** 0.5, -1)
                parts.append((w.unsqueeze(1) @ v[:, : i + 1, s]).squeeze(1))
            outs.append(torch.cat(parts, -1))
        return self.W_o(torch.stack(outs, 1))
    def forward(self, x):
        x = x + F.dropout(self._rows(self._norm(x, self.norm1)), self.p, self.training)
        h = self.linear1(self._norm(x, self.norm2))
        h = h * 0.5 * (1 + torch.erf(h / 2 ** 0.5))
        return x + F.dropout(self.linear2(h), self.p, self.training)
