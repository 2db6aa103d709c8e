import torch


def apply_rope(x, positions, base=10000.0):
    h = x.shape[-1] // 2
    a = positions[:, None].float() * base ** (-torch.arange(h, device=x.device).float() / h)
    x1, x2 = x.split(h, -1)
    return torch.cat((x1 * a.cos() - x2 * a.sin(), x1 * a.sin() - x2 * a.cos()), -1).to(x.dtype)
