import torch
from torch import nn


class DecoderBlock(nn.Module):
    """Layers W_q, W_k, W_v, W_o (no bias), linear1, linear2, norm1, norm2."""

    def __init__(self, d_model, num_heads, d_ff, dropout):
        super().__init__()
        raise NotImplementedError

    def forward(self, x):
        """x (batch, n, d_model) -> (batch, n, d_model); position i looks at positions 0 .. i."""
        raise NotImplementedError
