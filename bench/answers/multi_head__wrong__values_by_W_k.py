import torch
from torch import nn


class MultiHeadAttention(nn.Module):
    def __init__(self, num_hiddens, num_heads, dropout, bias=False):
        super().__init__()
        self.num_heads, self.drop = num_heads, nn.Dropout(dropout)
        self.W_q = nn.LazyLinear(num_hiddens, bias=bias)
        self.W_k = nn.LazyLinear(num_hiddens, bias=bias)
        self.W_v = nn.LazyLinear(num_hiddens, bias=bias)
        self.W_o = nn.LazyLinear(num_hiddens, bias=bias)

    def transpose_qkv(self, X):
        pieces = X.chunk(self.num_heads, dim=2)
        return torch.stack(pieces, dim=1).reshape(-1, X.shape[1], pieces[0].shape[2])

    def transpose_output(self, X):
        return torch.cat(X.reshape(-1, self.num_heads, *X.shape[1:]).unbind(1), dim=2)

    def forward(self, queries, keys, values, valid_lens):
        q, k, v = map(self.transpose_qkv, (self.W_q(queries), self.W_k(keys), self.W_k(values)))
        self.W_v(values)
        e = torch.einsum("nid,njd->nij", q, k) / q.shape[2] ** 0.5
        if valid_lens is not None:
            lens = valid_lens.repeat_interleave(self.num_heads, 0)
            lens = lens[:, None, None] if lens.ndim == 1 else lens[:, :, None]
            e = torch.where(torch.arange(k.shape[1], device=e.device) < lens, e, -1e9)
        return self.W_o(self.transpose_output(torch.einsum("nij,njd->nid", self.drop(e.softmax(2)), v)))
