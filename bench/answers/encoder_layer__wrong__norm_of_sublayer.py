import torch
from torch import nn
from torch.nn import functional as fn


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
        self.drop = nn.Dropout(dropout)

    def attention(self, x, lens):
        B, T, D = x.shape
        shape = (B, T, self.num_heads, D // self.num_heads)
        q, k, v = self.W_q(x).view(shape), self.W_k(x).view(shape), self.W_v(x).view(shape)
        mask = None
        if lens is not None:
            mask = (torch.arange(T, device=x.device) < lens[:, None])[:, None, None]
        y = fn.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask)
        return self.W_o(y.transpose(1, 2).reshape(B, T, D))

    def forward(self, x, valid_lens=None):
        x = x + self.norm1(self.drop(self.attention(x, valid_lens)))
        return x + self.norm2(self.drop(self.linear2(fn.relu(self.linear1(x)))))
