import torch
def apply_rope(x, positions, base=10000.0):
    d = x.shape[-1]
    R = torch.zeros(len(positions), d, d)
    for p, m in enumerate(positions.tolist()):
        for i in range(d // 2):
            a = torch.tensor(m * base ** (-2 * i / d))
            R[p, 2 * i, 2 * i] = torch.cos(a)
            R[p, 2 * i, 2 * i + 1] = -torch.sin(a)
            R[p, 2 * i + 1, 2 * i] = torch.sin(a)
            R[p, 2 * i + 1, 2 * i + 1] = torch.cos(a)
    return torch.einsum("nij,bhnj->bhni", R, x)
