import torch
from torch import nn
import torch.nn.functional as F
class CachedAttention(nn.Module):
    def __init__(self, d_model, n_head):
        super().__init__()
        self.n_head = n_head
        for n in "qkvo":
            self.add_module(f"W_{n}", nn.Linear(d_model, d_model, bias=False))
    def forward(self, x, cache=None):
        q, k, v = (getattr(self, f"W_{n}")(x).unflatten(-1, (self.n_head, -1)).transpose(1, 2) for n in "qkv")
        if cache is None:
            self.K, self.V = k, v
        else:
            self.K, self.V = torch.cat([self.K, k], 2), torch.cat([self.V, v], 2)
        k, v = self.K, self.V
        start = k.shape[2] - q.shape[2]
        allowed = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=x.device).tril(start)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return self.W_o(y.transpose(1, 2).flatten(2)), (k, v)
