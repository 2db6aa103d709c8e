import torch
import torch.nn.functional as fn
from torch import nn


class DecoderBlock(nn.Module):
    def __init__(self, d_model: int, num_heads: int, d_ff: int, dropout: float) -> None:
        super().__init__()
        self.num_heads, self.size = num_heads, d_model // num_heads
        for letter in "qkvo":
            self.add_module(f"W_{letter}", nn.Linear(d_model, d_model, bias=False))
        self.linear1, self.linear2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.p = dropout

    def heads(self, h):
        q, k, v = self.W_q(h), self.W_k(h), self.W_v(h)
        n = h.shape[1]
        for i in range(self.num_heads):
            part = slice(i * self.size, (i + 1) * self.size)
            scores = torch.einsum("bid,bjd->bij", q[..., part], k[..., part]) / self.size**0.5
            rows, columns = torch.arange(n, device=h.device)[:, None], torch.arange(n, device=h.device)
            scores = scores + torch.where(columns <= rows, 0.0, float("-inf")).to(scores.dtype)
            yield scores.softmax(-1) @ v[..., part]

    def forward(self, x):
        attended = self.W_o(torch.cat(list(self.heads(self.norm1(x))), dim=-1))
        x = x + fn.dropout(attended, self.p, training=self.training)
        widened = fn.gelu(self.linear1(self.norm2(x)))
        return x + fn.dropout(self.linear2(widened), self.p, training=self.training)
