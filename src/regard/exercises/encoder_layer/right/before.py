import math
import torch
from torch import nn

class EncoderLayer(nn.Module):

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

    def attend(self, x, lens):
        cut = lambda t: torch.stack(t.chunk(self.num_heads, dim=-1))
        s = torch.einsum("hbqd,hbkd->hbqk", cut(self.W_q(x)), cut(self.W_k(x)))
        s = s * (x.shape[-1] / self.num_heads) ** -0.5
        if lens is not None:
            seen = torch.arange(x.shape[1], device=x.device) < lens[:, None]
            s = s + torch.where(seen, 0.0, -1e4)[:, None].to(s)
        return self.W_o(torch.cat(list(s.softmax(-1) @ cut(self.W_v(x))), dim=-1))

    def forward(self, x, valid_lens=None):
        x = x + self.dropout(self.attend(self.norm1(x), valid_lens))
        return x + self.dropout(self.linear2(self.linear1(self.norm2(x)).relu()))
