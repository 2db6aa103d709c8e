import torch
from torch import nn


class EncoderLayer(nn.Module):
    """Layers W_q, W_k, W_v, W_o (no bias), linear1, linear2, norm1, norm2."""

    def __init__(self, d_model, num_heads, d_ff, dropout):
        super().__init__()
        raise NotImplementedError

    def forward(self, x, valid_lens=None):
        """x (batch, n, d_model), valid_lens (batch,) -> (batch, n, d_model)."""
        raise NotImplementedError
