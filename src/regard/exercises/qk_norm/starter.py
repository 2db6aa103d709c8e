import torch


def qk_norm_attention(q, k, v, q_weight, k_weight, eps=1e-6):
    """q, k, v (batch, heads, n, d), q_weight and k_weight (d,) -> (batch, heads, n, d), causal."""
    raise NotImplementedError
