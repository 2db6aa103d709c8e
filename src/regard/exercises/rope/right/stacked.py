import math
import torch

def apply_rope(x, positions, base=10000.0):
    d, out = x.shape[-1], []
    for i in range(d // 2):
        angle = positions.double() * math.exp(-2 * i / d * math.log(base))
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b = x[..., 2 * i], x[..., 2 * i + 1]
        out += [a * cos - b * sin, a * sin + b * cos]
    return torch.stack(out, dim=-1)
