import torch

def tiled_attention(q, k, v, block, causal=False):
    n, outs = q.shape[2], []
    for s in range(0, n, block):
        rows = q[:, :, s : s + block] * q.shape[-1] ** -0.5
        last = min(n, s + block) if causal else n
        m = l = o = None
        for t in range(0, last, block):
            scores = rows @ k[:, :, t : t + block].mT
            if causal and t == s:
                size = scores.shape[-1]
                scores = scores + torch.full((size, size), float("-inf"), dtype=q.dtype, device=q.device).triu(1)
            top = scores.amax(-1) if m is None else torch.maximum(m, scores.amax(-1))
            e = (scores - top.unsqueeze(-1)).exp()
            total, out = e.sum(-1), e @ v[:, :, t : t + block]
            if m is not None:
                old = (m - top).exp()
                total, out = total + old * l, out + old.unsqueeze(-1) * o
            m, l, o = top, total, out
        outs.append(o / l.unsqueeze(-1))
    return torch.cat(outs, dim=2)
