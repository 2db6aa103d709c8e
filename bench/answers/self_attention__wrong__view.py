import torch
from torch import nn
import torch.nn.functional as F
class SelfAttention(nn.Module):
    def __init__(self, input_size, hidden):
        super().__init__()
        self.k = nn.Linear(input_size, hidden)
        self.v = nn.Linear(input_size, hidden)
        self.q = nn.Linear(input_size, hidden)
    def forward(self, x):
        queries, keys, values = self.q(x), self.k(x), self.v(x)
        k = queries.size(-1)
        queries = queries / (k ** (1 / 4))
        keys = keys / (k ** (1 / 4))
        dot = torch.bmm(queries, keys.view(keys.size(0), keys.size(2), keys.size(1)))
        dot = F.softmax(dot, dim=2)
        return torch.bmm(dot, values)
