import math
import torch


def tiled_attention(q, k, v, block, causal=False):
    b, h, n, d = q.shape
    m = torch.full((b, h, n, 1), float("-inf"), dtype=q.dtype, device=q.device)
    l = torch.zeros(b, h, n, 1, dtype=q.dtype, device=q.device)
    o = torch.zeros_like(q)
    rows = torch.arange(n, device=q.device)[:, None]
    for t in range(n // block):
        lo, hi = t * block, (t + 1) * block
        s = q @ k[:, :, lo:hi].transpose(-1, -2) / math.sqrt(d)
        if causal:
            cols = torch.arange(lo, hi, device=q.device)[None, :]
            s = s.masked_fill(cols > rows, float("-inf"))
        m_new = torch.maximum(m, s.amax(dim=-1, keepdim=True))
        p = torch.exp(s - m_new)
        c = torch.exp(m - m_new)
        l = c * l + p.sum(dim=-1, keepdim=True)
        o = c * o + p @ v[:, :, lo:hi]
        m = m_new
    return o / l
