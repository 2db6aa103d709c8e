import torch
from torch import nn
class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.variance_epsilon = eps
    def forward(self, x):
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        variance = wide.pow(2).mean(-1, keepdim=True)
        hidden = wide * torch.rsqrt(variance + self.variance_epsilon)
        return (self.weight.to(wide.dtype) * hidden).to(x.dtype)
