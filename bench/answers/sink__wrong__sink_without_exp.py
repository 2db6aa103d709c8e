import torch


def sink_attention(q, k, v, sink):
    n, d = q.shape[-2:]
    s = q @ k.mT / d**0.5
    s = s.masked_fill(torch.ones(n, n, device=q.device).triu(1).bool(), float("-inf"))
    m = s.amax(-1, keepdim=True)
    e = torch.exp(s - m)
    return e @ v / (e.sum(-1, keepdim=True) + sink[None, :, None, None])
