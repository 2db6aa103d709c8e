import torch


def apply_rope(x, positions, base=10000.0):
    d = x.shape[-1]
    inv = base ** (-torch.arange(0, d, 2, dtype=torch.float64, device=x.device) / d)
    rot = torch.polar(torch.ones(len(positions), d // 2, dtype=torch.float64, device=x.device), positions[:, None].double() * inv)
    pairs = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * rot).flatten(-2).to(x.dtype)
