import torch


def apply_rope(x, positions, base=10000.0):
    d = x.shape[-1]
    i = torch.arange(d // 2, dtype=torch.float32, device=x.device)
    ang = torch.outer(positions.to(torch.float32), torch.pow(base, -2 * i / d))
    cos, sin = torch.cos(ang), torch.sin(ang)
    y = x.to(torch.promote_types(x.dtype, torch.float32)).clone()
    a, b = y[..., 0::2], y[..., 1::2]
    a = a * cos - b * sin
    b = a * sin + b * cos
    return torch.stack((a, b), dim=-1).flatten(-2).to(x.dtype)
