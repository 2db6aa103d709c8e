import torch
from torch import nn


class MultiHeadAttention(nn.Module):
    """Layers W_q, W_k, W_v (d_model to 2 * d_model), W_o (2 * d_model to d_model)."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        raise NotImplementedError

    def scaled_dot_product_attention(self, Q, K, V, mask=None):
        raise NotImplementedError

    def split_heads(self, x):
        """(batch, L, width) -> (batch, num_heads, L, width / num_heads)."""
        raise NotImplementedError

    def combine_heads(self, x):
        """(batch, num_heads, L, width / num_heads) -> (batch, L, width)."""
        raise NotImplementedError

    def forward(self, Q, K, V, mask=None):
        """Q (batch, Lq, d_model), K and V (batch, Lk, d_model), mask (Lq, Lk) or (batch, Lq, Lk)."""
        raise NotImplementedError
