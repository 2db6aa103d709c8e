import torch
from torch import nn
class SelfAttention(nn.Module):
    def __init__(self, input_size, hidden):
        super().__init__()
        self.hidden = hidden
        self.q = nn.Linear(input_size, hidden)
        self.k = nn.Linear(input_size, hidden)
        self.v = nn.Linear(input_size, hidden)
    def forward(self, x):
        out = []
        for seq in x:
            Q, K, V = self.q(seq), self.k(seq), self.v(seq)
            rows = []
            for query in Q:
                w = torch.softmax(torch.stack([torch.dot(query, key) for key in K]) / self.hidden**0.5, 0)
                rows.append(sum(a * value for a, value in zip(w, V)))
            out.append(torch.stack(rows))
        return torch.stack(out)
