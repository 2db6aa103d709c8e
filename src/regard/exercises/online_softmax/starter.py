import torch


def online_softmax_step(m, l, o, scores, values):
    """m, l (n,), o (n, d), scores (n, block), values (block, d) -> the new (m, l, o)."""
    raise NotImplementedError
