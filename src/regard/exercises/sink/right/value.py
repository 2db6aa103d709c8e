import torch
from torch.nn import functional as F

def sink_attention(q, k, v, sink):
    b, h, n, d = q.shape
    zero = torch.zeros(b, h, 1, d, dtype=q.dtype, device=q.device)
    bias = torch.full((n, n), float("-inf"), dtype=q.dtype, device=q.device).triu(1)
    bias = torch.cat([sink[:, None, None].expand(h, n, 1), bias.expand(h, n, n)], dim=-1)
    return F.scaled_dot_product_attention(q, torch.cat([zero, k], 2), torch.cat([zero, v], 2), attn_mask=bias[None])
