import torch
def rotate_every_two(x):
    x1 = x[:, :, :, ::2]
    x2 = x[:, :, :, 1::2]
    return torch.stack((-x2, x1), dim=-1).flatten(-2)
def apply_rope(x, positions, base=10000.0):
    d = x.shape[-1]
    inv = torch.exp(torch.arange(0, d, 2, device=x.device).float() * (-torch.log(torch.tensor(base)) / d))
    angle = torch.outer(positions.float(), inv)
    sin, cos = (t.repeat_interleave(2, dim=-1).to(x.dtype) for t in (angle.sin(), angle.cos()))
    return x * cos + rotate_every_two(x) * sin
