import torch
from torch import nn


class DecoderBlock(nn.Module):
    """Attention and feed-forward side by side."""

    def __init__(self, d_model, num_heads, d_ff, dropout):
        super().__init__()
        self.n = num_heads
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)
        self.linear1 = nn.Linear(d_model, d_ff)
        self.linear2 = nn.Linear(d_ff, d_model)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.drop = nn.Dropout(dropout)

    def look(self, h):
        q, k, v = (w(h).unflatten(-1, (self.n, -1)) for w in (self.W_q, self.W_k, self.W_v))
        e = torch.einsum("bihd,bjhd->bhij", q, k) / q.shape[-1] ** 0.5
        past = torch.ones(h.shape[1], h.shape[1], device=h.device).tril()
        e = e.masked_fill(past == 0, float("-inf"))
        return self.W_o(torch.einsum("bhij,bjhd->bihd", e.softmax(-1), v).flatten(2))

    def think(self, h):
        return self.linear2(nn.functional.gelu(self.linear1(h)))

    def forward(self, x):
        return x + self.drop(self.look(self.norm1(x))) + self.drop(self.think(self.norm2(x)))
