import torch
from torch import nn
class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim)); self.eps = eps
    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        if flat.dtype in (torch.float16, torch.bfloat16):
            flat = flat.float()
        rows = [row / torch.sqrt(torch.dot(row, row) / len(row) + self.eps) for row in flat]
        return (torch.stack(rows).reshape(x.shape).to(x.dtype)) * self.weight
