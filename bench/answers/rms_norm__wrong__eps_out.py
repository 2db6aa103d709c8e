import torch
from torch import nn
class RMSNorm(torch.nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))
    def _norm(self, x):
        return x * (1 / (x.pow(2).mean(-1, keepdim=True).sqrt() + self.eps))
    def forward(self, x):
        output = self._norm(x if x.dtype == torch.float64 else x.float()).type_as(x)
        return output * self.weight
