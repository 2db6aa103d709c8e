import torch


def relative_bias_attention(q, k, v, table):
    """q, k, v (batch, heads, n, d), table (heads, 2 r + 1) -> (batch, heads, n, d)."""
    raise NotImplementedError
