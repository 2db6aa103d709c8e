import torch
from torch import nn
class SelfAttention(nn.Module):
    def __init__(self, input_size, hidden):
        super().__init__()
        self.q = nn.Linear(input_size, hidden)
        self.k = nn.Linear(input_size, hidden)
        self.v = nn.Linear(input_size, hidden)
    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        s = torch.einsum("bqh,bkh->bqk", q, k).div(q.shape[-1] ** 0.5)
        e = (s - s.max().detach()).exp()
        return torch.einsum("bqk,bkh->bqh", e, v) / e.sum(-1, keepdim=True)
