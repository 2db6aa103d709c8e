import torch
def tiled_attention(q, k, v, block, causal=False):
    n, d = q.shape[2], q.shape[3]
    rows = torch.arange(n, device=q.device)
    def scores(j):
        s = (q * d**-0.5) @ k[:, :, j : j + block].mT
        if causal:
            s = s.masked_fill(rows[j : j + block][None] > rows[:, None], -torch.inf)
        return s
    top = torch.full(q.shape[:-1], -torch.inf, dtype=q.dtype, device=q.device)
    for j in range(0, n, block):
        top = torch.maximum(top, scores(j).amax(-1))
    num, den = 0, 0
    for j in range(0, n, block):
        e = torch.exp(scores(j) - top[..., None])
        num = num + e @ v[:, :, j : j + block]
        den = den + e.sum(-1, keepdim=True)
    return num / den
