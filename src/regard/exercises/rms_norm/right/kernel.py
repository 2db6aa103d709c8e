import torch
from torch import nn

class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.scale = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        out = nn.functional.rms_norm(wide, x.shape[-1:], self.scale.to(wide.dtype), self.eps)
        return out.to(x.dtype)
