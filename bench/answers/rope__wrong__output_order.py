import torch


def apply_rope(x, positions, base=10000.0):
    d = x.shape[-1]
    f = 1.0 / base ** (torch.arange(0, d, 2, device=x.device).float() / d)
    a = positions[:, None].float() * f
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.cat([even * a.cos() - odd * a.sin(), even * a.sin() + odd * a.cos()], dim=-1).to(x.dtype)
