import math
import torch

def tiled_attention(q, k, v, block, causal=False):
    b, h, n, d = q.shape
    m = torch.full((b, h, n, 1), float("-inf"), dtype=q.dtype, device=q.device)
    l, o = torch.zeros_like(m), torch.zeros_like(q)
    i = torch.arange(n, device=q.device)[:, None]
    for s in range(0, n, block):
        scores = q @ k[:, :, s : s + block].transpose(-2, -1) / math.sqrt(d)
        if causal:
            j = torch.arange(scores.shape[-1], device=q.device)
            scores = scores.masked_fill(j > i, float("-inf"))
        new = torch.maximum(m, scores.amax(-1, keepdim=True))
        old, e = torch.exp(m - new), torch.exp(scores - new)
        m, l, o = new, old * l + e.sum(-1, keepdim=True), old * o + e @ v[:, :, s : s + block]
    return o / l
