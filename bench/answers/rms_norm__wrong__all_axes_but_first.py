import torch
from torch import nn


class RMSNorm(nn.Module):

    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.register_parameter("weight", nn.Parameter(torch.ones(dim)))
        self.eps = eps

    def forward(self, x):
        dims = tuple(range(1, x.ndim)) or (0,)
        z = x.double()
        rms = torch.sqrt(torch.mean(z ** 2, dim=dims, keepdim=True) + self.eps)
        return ((z / rms) * self.weight).to(x.dtype)
