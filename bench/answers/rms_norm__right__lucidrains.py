import torch
import torch.nn.functional as F
from torch import nn
class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps, self.dim = eps, dim
        self.weight = nn.Parameter(torch.ones(dim))
    def forward(self, x):
        y = x.double() if x.dtype == torch.float64 else x.float()
        ms = torch.einsum("...d,...d->...", y, y)[..., None] / self.dim
        return (y / (ms + self.eps) ** 0.5 * self.weight).to(x.dtype)
