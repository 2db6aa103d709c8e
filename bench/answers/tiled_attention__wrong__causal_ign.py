import torch
def tiled_attention(q, k, v, block, causal=False):
    b, h, n, d = q.shape
    m = torch.full((b, h, n, 1), -float("inf"), dtype=q.dtype, device=q.device)
    l = torch.zeros(b, h, n, 1, dtype=q.dtype, device=q.device)
    o = torch.zeros_like(q)
    for j in range(0, n, block):
        kj, vj = k[:, :, j : j + block], v[:, :, j : j + block]
        s = q @ kj.mT * d**-0.5
        if False:
            rows = torch.arange(n, device=q.device)[:, None]
            cols = torch.arange(j, j + kj.shape[2], device=q.device)[None]
            s = s.masked_fill(cols > rows, -float("inf"))
        new = torch.maximum(m, s.amax(-1, keepdim=True))
        p, a = torch.exp(s - new), torch.exp(m - new)
        l, o, m = a * l + p.sum(-1, keepdim=True), a * o + p @ vj, new
    return o / l
