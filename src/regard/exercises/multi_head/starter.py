import torch
from torch import nn


class MultiHeadAttention(nn.Module):
    def __init__(self, num_hiddens, num_heads, dropout, bias=False):
        super().__init__()
        raise NotImplementedError

    def transpose_qkv(self, X):
        """(batch, n, num_hiddens) -> (batch * num_heads, n, num_hiddens / num_heads)."""
        raise NotImplementedError

    def transpose_output(self, X):
        """(batch * num_heads, n, num_hiddens / num_heads) -> (batch, n, num_hiddens)."""
        raise NotImplementedError

    def forward(self, queries, keys, values, valid_lens):
        """Each (batch, n, num_hiddens), valid_lens None, (batch,) or (batch, queries)."""
        raise NotImplementedError
