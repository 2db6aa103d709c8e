import torch
from torch import nn


class AdditiveAttention(nn.Module):
    def __init__(self, num_hiddens, dropout):
        super().__init__()
        raise NotImplementedError

    def forward(self, queries, keys, values, valid_lens):
        """(batch, queries, query_size), (batch, keys, key_size), (batch, keys, v) -> (batch, queries, v)."""
        raise NotImplementedError
