import torch
from torch import nn


class MultiHeadSelfAttention(nn.Module):
    def __init__(self, input_size, hidden, num_heads, causal=False, dropout=0):
        super().__init__()
        raise NotImplementedError

    def forward(self, x, return_attention=False):
        """(batch, seq, input_size) -> (batch, seq, hidden), and the attention (batch * heads, seq, seq)."""
        raise NotImplementedError
