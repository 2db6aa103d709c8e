import torch
import torch.nn.functional as F
def sink_attention(q, k, v, sink):
    b, h, n, d = q.shape
    k = F.pad(k, (0, 0, 1, 0))
    v = F.pad(v, (0, 0, 1, 0))
    bias = torch.zeros(h, n, n + 1, dtype=q.dtype, device=q.device)
    bias = bias.masked_fill(torch.ones(n, n + 1, dtype=torch.bool, device=q.device).triu(2), -torch.inf)
    bias = torch.cat([sink[:, None, None].expand(h, n, 1), bias[..., 1:]], -1)
    s = q @ k.mT / d**0.5 + bias
    return s.softmax(-1) @ v
