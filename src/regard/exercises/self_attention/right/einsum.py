import torch
from torch import nn

class SelfAttention(nn.Module):
    def __init__(self, input_size, hidden):
        super().__init__()
        for name in "qkv":
            setattr(self, name, nn.LazyLinear(hidden))
        self.hidden = hidden

    def forward(self, x):
        scores = torch.einsum("bih,bjh->bij", self.q(x) * self.hidden ** -0.5, self.k(x))
        e = torch.exp(scores - scores.amax(dim=2, keepdim=True))
        return torch.einsum("bij,bjh->bih", e / e.sum(dim=2, keepdim=True), self.v(x))
