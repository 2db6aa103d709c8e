import torch
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(dim))

    def forward(self, x):
        h = x.float() if x.element_size() < 4 else x
        return (h * torch.rsqrt(h.pow(2).mean() + self.eps) * self.weight).to(x.dtype)
