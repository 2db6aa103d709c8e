import torch


def sliding_window_attention(q, k, v, window):
    """q, k, v (batch, heads, n, d) -> (batch, heads, n, d); position i sees i - window + 1 .. i."""
    raise NotImplementedError
