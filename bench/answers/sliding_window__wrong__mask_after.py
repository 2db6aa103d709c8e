import torch


def sliding_window_attention(q, k, v, window):
    n, d = q.shape[-2:]
    ones = torch.ones(n, n, device=q.device, dtype=torch.bool)
    w = (q @ k.mT / d**0.5).masked_fill(ones.triu(1), -torch.inf).softmax(-1)
    return w.masked_fill(ones.tril(-window), 0.0) @ v
