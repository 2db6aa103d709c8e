import torch


def apply_rope(x, positions, base=10000.0):
    """x (batch, heads, n, d), positions (n,) -> (batch, heads, n, d), each pair rotated by its angle."""
    raise NotImplementedError
