import math
import torch
from torch import nn

class SelfAttention(nn.Module):
    def __init__(self, input_size, hidden):
        super().__init__()
        self.q = nn.Linear(input_size, hidden)
        self.k = nn.Linear(input_size, hidden)
        self.v = nn.Linear(input_size, hidden)
        self.scale = math.sqrt(hidden)

    def forward(self, x):
        query = self.q(x)
        key = self.k(x)
        value = self.v(x)
        scores = torch.bmm(query, key.transpose(1, 2))
        scores = scores / self.scale
        weights = torch.softmax(scores, dim=-1)
        out = torch.bmm(weights, value)
        return out
