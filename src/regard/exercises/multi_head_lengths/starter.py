import torch
from torch import nn


class MultiHeadAttention(nn.Module):
    """Layers W_q, W_k, W_v, W_o."""

    def __init__(self, num_heads, embedding_dim, qk_length, value_length):
        super().__init__()
        raise NotImplementedError

    def split_heads(self, x, vec_length):
        """(B, T, num_heads * vec_length) -> (B, num_heads, T, vec_length)."""
        raise NotImplementedError

    def combine_heads(self, x):
        """(B, num_heads, T, vec_length) -> (B, T, num_heads * vec_length)."""
        raise NotImplementedError

    def forward(self, Q, K, V):
        """Q (B, Tq, embedding_dim), K and V (B, Tk, embedding_dim) -> (B, Tq, embedding_dim)."""
        raise NotImplementedError
