import torch

def apply_rope(x, positions, base=10000.0):
    d = x.shape[-1]
    exponent = torch.arange(d // 2, device=x.device, dtype=torch.float64) * (-2 / d)
    angle = positions.double()[:, None] * base ** exponent
    turn = torch.polar(torch.ones_like(angle), angle)
    pairs = torch.view_as_complex(x.double().contiguous().reshape(*x.shape[:-1], d // 2, 2))
    return torch.view_as_real(pairs * turn).flatten(-2).to(x.dtype)
