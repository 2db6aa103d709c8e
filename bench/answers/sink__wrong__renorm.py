import torch
def sink_attention(q, k, v, sink):
    b, h, n, d = q.shape
    s = q @ k.transpose(-1, -2) / d**0.5
    s = s.masked_fill(torch.ones(n, n, dtype=torch.bool, device=q.device).triu(1), float("-inf"))
    both = torch.cat([s, sink.view(1, h, 1, 1).expand(b, h, n, 1)], -1)
    return (lambda w: w / w.sum(-1, keepdim=True))(both.softmax(-1)[..., :-1]) @ v
