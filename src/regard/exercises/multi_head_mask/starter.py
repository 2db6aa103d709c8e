import torch
from torch import nn


class MultiHeadAttention(nn.Module):
    """Layers W_q, W_k, W_v, W_o."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        raise NotImplementedError

    def scaled_dot_product_attention(self, Q, K, V, mask=None):
        raise NotImplementedError

    def split_heads(self, x):
        """(batch, L, d_model) -> (batch, num_heads, L, d_model / num_heads)."""
        raise NotImplementedError

    def combine_heads(self, x):
        """(batch, num_heads, L, d_model / num_heads) -> (batch, L, d_model)."""
        raise NotImplementedError

    def forward(self, Q, K, V, mask=None):
        """Q (batch, Lq, d_model), K and V (batch, Lk, d_model), mask (Lq, Lk) or (batch, Lq, Lk)."""
        raise NotImplementedError
