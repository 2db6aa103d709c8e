import math
import torch
def apply_rope(x, positions, base=10000.0):
    out = x.clone()
    d = x.shape[-1]
    for i in range(d // 2):
        theta = positions.to(torch.float64) * math.pow(base, -1.0 * i / d)
        c, s = theta.cos().to(x.dtype), theta.sin().to(x.dtype)
        a, b = x[..., 2 * i], x[..., 2 * i + 1]
        out[..., 2 * i] = a * c - b * s
        out[..., 2 * i + 1] = a * s + b * c
    return out
