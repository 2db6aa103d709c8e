import torch
from torch import nn
import torch.nn.functional as F
class CrossAttention(nn.Module):
    """one sequence at a time, its padding cut off"""
    def __init__(self, d_model, d_context, n_head):
        super().__init__()
        self.h = n_head
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k, self.W_v = (nn.Linear(d_context, d_model, bias=False) for _ in range(2))
        self.W_o = nn.Linear(d_model, d_model, bias=False)
    def one(self, x, context):
        q, k, v = (layer(t).unflatten(-1, (self.h, -1)).transpose(0, 1) for layer, t in ((self.W_q, x), (self.W_k, context), (self.W_v, context)))
        return self.W_o(F.scaled_dot_product_attention(q, k, v).transpose(0, 1).flatten(1))
    def forward(self, x, context, lengths=None):
        n = [context.shape[1]] * len(x) if lengths is None else [int(l) for l in lengths]
        return torch.stack([self.one(x[b], context[b, : n[b]]) if n[b] else torch.zeros_like(x[b]) for b in range(len(x))])
