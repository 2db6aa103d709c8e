import torch
from torch import nn


class MultiHeadAttention(nn.Module):
    def __init__(self, num_hiddens, num_heads, dropout, bias=False):
        super().__init__()
        self.num_heads = num_heads
        self.W_q = nn.LazyLinear(num_hiddens, bias=bias)
        self.W_k = nn.LazyLinear(num_hiddens, bias=bias)
        self.W_v = nn.LazyLinear(num_hiddens, bias=bias)
        self.W_o = nn.LazyLinear(num_hiddens)
        self.dropout = nn.Dropout(dropout)

    def transpose_qkv(self, X):
        b, n, w = X.shape
        return X.view(b, n, self.num_heads, w // self.num_heads).transpose(1, 2).reshape(b * self.num_heads, n, -1)

    def transpose_output(self, X):
        bh, n, d = X.shape
        return X.view(bh // self.num_heads, self.num_heads, n, d).transpose(1, 2).reshape(-1, n, self.num_heads * d)

    def masked_softmax(self, scores, valid_lens):
        if valid_lens is None:
            return scores.softmax(-1)
        if valid_lens.dim() == 1:
            valid_lens = valid_lens.unsqueeze(1)
        lens = valid_lens.repeat_interleave(self.num_heads, dim=0).unsqueeze(-1)
        keep = torch.arange(scores.shape[-1], device=scores.device) < lens
        return scores.masked_fill(~keep, -1e9).softmax(-1)

    def forward(self, queries, keys, values, valid_lens):
        q, k, v = map(self.transpose_qkv, (self.W_q(queries), self.W_k(keys), self.W_v(values)))
        weights = self.masked_softmax(q @ k.transpose(1, 2) / q.shape[-1] ** 0.5, valid_lens)
        return self.W_o(self.transpose_output(self.dropout(weights) @ v))
