import math
import torch
from torch import nn
from torch.nn import functional as F

class DecoderBlock(nn.Module):

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

    def forward(self, x):
        b, n, d = x.shape
        i = torch.arange(n, device=x.device)
        heads = lambda t: t.reshape(b, n, self.num_heads, -1).permute(2, 0, 1, 3)
        s = heads(self.W_q(x)) @ heads(self.W_k(x)).mT * (d // self.num_heads) ** -0.5
        s = torch.where(i[:, None] < i, torch.full_like(s, -1e4), s)
        a = (self.dropout(s.softmax(-1)) @ heads(self.W_v(x))).permute(1, 2, 0, 3).flatten(2)
        x = self.norm1(x + self.dropout(self.W_o(a)))
        return self.norm2(x + self.dropout(self.linear2(nn.GELU()(self.linear1(x)))))
