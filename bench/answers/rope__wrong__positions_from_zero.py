import torch


def apply_rope(x, positions, base=10000.0):
    b, h, n, d = x.shape
    freqs = 1.0 / (base ** (torch.arange(0, d, 2, device=x.device).float() / d))
    t = (positions - positions[0]).to(freqs)
    angles = torch.einsum("n,f->nf", t, freqs)
    emb = torch.cat((angles, angles), dim=-1)[None, None]
    xf = x.float()
    turned = torch.cat((-xf[..., d // 2:], xf[..., :d // 2]), dim=-1)
    return (xf * emb.cos() + turned * emb.sin()).type_as(x)
