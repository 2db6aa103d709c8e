import torch
from torch.nn import functional as F

def relative_bias_attention(q, k, v, table):
    r = (table.shape[1] - 1) // 2
    place = torch.arange(q.shape[2], device=q.device)
    distance = (place[:, None] - place[None, :]).clamp(-r, r) + r
    return F.scaled_dot_product_attention(q, k, v, attn_mask=table[:, distance].to(q.dtype)[None])
