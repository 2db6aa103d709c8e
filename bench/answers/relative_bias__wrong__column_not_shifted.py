import math

import torch


def relative_bias_attention(q, k, v, table):
    n, d = q.shape[-2], q.shape[-1]
    r = (table.shape[1] - 1) // 2
    idx = torch.arange(n, device=q.device)
    rel = (idx[None, :] - idx[:, None]).clamp(-r, r)
    bias = table[:, rel]
    scores = q @ k.transpose(-2, -1) / math.sqrt(d) + bias.unsqueeze(0)
    return torch.softmax(scores, dim=-1) @ v
