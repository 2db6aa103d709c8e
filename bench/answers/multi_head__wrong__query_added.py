import torch
from torch import nn


class MultiHeadAttention(nn.Module):
    def __init__(self, num_hiddens, num_heads, dropout, bias=False):
        super().__init__()
        self.num_heads = num_heads
        self.W_q = nn.Linear(num_hiddens, num_hiddens, bias=bias)
        self.W_k = nn.Linear(num_hiddens, num_hiddens, bias=bias)
        self.W_v = nn.Linear(num_hiddens, num_hiddens, bias=bias)
        self.W_o = nn.Linear(num_hiddens, num_hiddens, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def transpose_qkv(self, X):
        return X.unflatten(-1, (self.num_heads, -1)).transpose(1, 2).flatten(0, 1)

    def transpose_output(self, X):
        return X.unflatten(0, (-1, self.num_heads)).transpose(1, 2).flatten(2)

    def forward(self, queries, keys, values, valid_lens):
        q = self.transpose_qkv(self.W_q(queries))
        k = self.transpose_qkv(self.W_k(keys))
        v = self.transpose_qkv(self.W_v(values))
        e = torch.baddbmm(q.new_zeros(()), q, k.mT, alpha=q.shape[-1] ** -0.5)
        if valid_lens is not None:
            lens = valid_lens.repeat_interleave(self.num_heads, dim=0).reshape(len(e), -1, 1)
            e = e.masked_fill(torch.arange(e.shape[-1], device=e.device) >= lens, -1e9)
        heads = torch.bmm(self.dropout(e.softmax(-1)), v)
        return queries + self.W_o(self.transpose_output(heads))
