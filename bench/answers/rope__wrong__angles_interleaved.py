import torch

def apply_rope(x, positions, base=10000.0):
    d = x.shape[-1]
    inv_freq = 1.0 / base ** (torch.arange(0, d, 2, device=x.device, dtype=torch.float32) / d)
    freqs = torch.outer(positions.float(), inv_freq)
    emb = freqs.repeat_interleave(2, dim=-1)
    cos, sin = emb.cos().to(x.dtype), emb.sin().to(x.dtype)
    a, b = x[..., : d // 2], x[..., d // 2 :]
    return x * cos + torch.cat([-b, a], dim=-1) * sin
