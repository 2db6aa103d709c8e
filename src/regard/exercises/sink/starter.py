import torch


def sink_attention(q, k, v, sink):
    """q, k, v (batch, heads, n, d), sink (heads,) -> (batch, heads, n, d), causal."""
    raise NotImplementedError
