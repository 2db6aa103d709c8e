import torch
from torch import nn


class SelfAttention(nn.Module):
    def __init__(self, input_size, hidden):
        super().__init__()
        raise NotImplementedError

    def forward(self, x):
        """(batch, seq, input_size) -> (batch, seq, hidden)."""
        raise NotImplementedError
