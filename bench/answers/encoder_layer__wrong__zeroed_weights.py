import torch
from torch import nn


class EncoderLayer(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, dropout):
        super().__init__()
        self.h = num_heads
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
        self.linear1, self.linear2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.drop = nn.Dropout(dropout)

    def self_attention(self, x, lens):
        per_head = lambda t: t.unflatten(2, (self.h, -1)).swapaxes(1, 2)
        q, k, v = map(per_head, (self.W_q(x), self.W_k(x), self.W_v(x)))
        p = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1)
        if lens is not None:
            inside = torch.arange(x.shape[1], device=x.device)[None, :] < lens[:, None]
            p = p * inside[:, None, None, :]  # no weight for padding
        return self.W_o((p @ v).swapaxes(1, 2).flatten(2))

    def forward(self, x, valid_lens=None):
        x = self.norm1(x + self.drop(self.self_attention(x, valid_lens)))
        return self.norm2(x + self.drop(self.linear2(self.linear1(x).clamp(min=0))))
