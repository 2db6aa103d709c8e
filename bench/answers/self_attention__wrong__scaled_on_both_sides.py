import torch
from torch import nn


class SelfAttention(nn.Module):
    def __init__(self, input_size: int, hidden: int):
        super().__init__()
        self.q = nn.Linear(input_size, hidden)
        self.k = nn.Linear(input_size, hidden)
        self.v = nn.Linear(input_size, hidden)
        self.root = hidden**0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        asks = self.q(x) / self.root
        offers = self.k(x) / self.root
        shares = torch.einsum("bih,bjh->bij", asks, offers).softmax(dim=2)
        return torch.einsum("bij,bjh->bih", shares, self.v(x))
