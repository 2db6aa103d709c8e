import torch
from torch import nn
class DotProductAttention(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.dropout = dropout
    def forward(self, queries, keys, values, valid_lens=None):
        b, n, d = queries.shape
        m = keys.shape[1]
        s = torch.einsum("bnd,bmd->bnm", queries * d ** -0.25, keys * d ** -0.25)
        keep = torch.ones(b, n, m, dtype=torch.bool, device=s.device)
        if valid_lens is not None:
            lens = valid_lens.reshape(b, -1, 1)
            keep = keep & (torch.arange(m, device=s.device).reshape(1, 1, m) < lens)
        top = s.masked_fill(~keep, -float("inf")).amax(-1, keepdim=True)
        top = torch.where(torch.isinf(top), torch.zeros_like(top), top)
        e = torch.where(keep, torch.exp(torch.where(keep, s - top, torch.zeros_like(s))), torch.zeros_like(s))
        weights = e / e.sum(-1, keepdim=True).clamp_min(1e-12)
        used = weights
        if self.training and self.dropout > 0:
            mask = (torch.rand_like(weights) > self.dropout).to(weights.dtype)
            used = mask * weights / (1.0 - self.dropout) if self.dropout < 1 else torch.zeros_like(weights)
        return torch.bmm(used, values), weights
