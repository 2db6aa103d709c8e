import torch
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        var = wide.var(dim=-1, unbiased=False, keepdim=True)
        y = wide * torch.rsqrt(var + self.eps) * self.weight
        return y.to(x.dtype)
