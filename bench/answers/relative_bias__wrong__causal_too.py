import torch


def relative_bias_attention(q, k, v, table):
    n, d = q.shape[-2:]
    r = table.shape[1] // 2
    i = torch.arange(n)
    rel = i[None] - i[:, None]
    s = q @ k.mT / d**0.5 + table[:, rel.clamp(-r, r) + r]
    return s.masked_fill(rel > 0, float("-inf")).softmax(-1) @ v
