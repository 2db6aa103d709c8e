import math
import torch
from torch import nn

class CachedAttention(nn.Module):
    def __init__(self, d_model, n_head):
        super().__init__()
        self.n_head = n_head
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))

    def forward(self, x, cache=None):
        b, n, width = x.shape
        q, k, v = (layer(x).reshape(b, n, self.n_head, -1).transpose(1, 2) for layer in (self.W_q, self.W_k, self.W_v))
        past = 0
        if cache is not None:
            past = cache[0].shape[2]
            k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
        later = torch.ones(n, past + n, dtype=torch.bool, device=x.device).triu(1)
        scores = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(later, float("-inf"))
        out = scores.softmax(-1) @ v
        return self.W_o(out.transpose(1, 2).reshape(b, n, width)), (k, v)
