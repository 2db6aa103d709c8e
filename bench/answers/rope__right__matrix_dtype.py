import torch
def apply_rope(x, positions, base=10000.0):
    d = x.shape[-1]
    freq = base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    angle = positions.double()[:, None] * freq
    c, s = angle.cos(), angle.sin()
    blocks = torch.stack([torch.stack([c, -s], -1), torch.stack([s, c], -1)], -2)  # (n, d/2, 2, 2)
    pairs = x.unflatten(-1, (-1, 2))
    return torch.einsum("nkij,bhnkj->bhnki", blocks.to(x.dtype), pairs).flatten(-2)
