import torch
def tiled_attention(q, k, v, block, causal=False):
    n, d = q.shape[2:]
    outs = []
    for i in range(0, n, block):
        qi = q[:, :, i : i + block]
        last = min(n, i + block) if causal else n
        m = torch.full(qi.shape[:-1], -torch.inf, dtype=q.dtype, device=q.device)
        l = torch.zeros_like(m)
        o = torch.zeros_like(qi)
        for j in range(0, last, block):
            kj, vj = k[:, :, j : min(j + block, last)], v[:, :, j : min(j + block, last)]
            s = torch.einsum("bhid,bhjd->bhij", qi, kj) / d**0.5
            if causal:
                r = torch.arange(i, i + qi.shape[2], device=q.device)
                c = torch.arange(j, j + kj.shape[2], device=q.device)
                s = torch.where(c[None] <= r[:, None], s, s.new_tensor(-torch.inf))
            mn = torch.maximum(m, s.max(-1).values)
            p = torch.exp(s - mn[..., None])
            c = torch.exp(m - mn)
            l = c * l + p.sum(-1)
            o = c[..., None] * o + p @ vj
            m = mn
        outs.append(o / l[..., None])
    return torch.cat(outs, 2)
