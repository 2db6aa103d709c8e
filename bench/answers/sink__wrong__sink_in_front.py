import math
import torch

def sink_attention(q, k, v, sink):
    b, h, n, d = q.shape
    scores = q @ k.transpose(-2, -1) / math.sqrt(d)
    scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool, device=q.device).triu(1), float("-inf"))
    scores = torch.cat([sink.reshape(1, h, 1, 1).expand(b, h, n, 1), scores], dim=-1)
    return torch.softmax(scores, dim=-1)[..., :-1] @ v
