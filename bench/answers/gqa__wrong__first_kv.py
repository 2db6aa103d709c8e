import math
import torch
from torch import nn
class GroupedQueryAttention(nn.Module):
    def __init__(self, d_model, n_head, n_kv_head):
        super().__init__()
        self.n_head, self.n_kv_head, self.d = n_head, n_kv_head, d_model // n_head
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, n_kv_head * self.d, bias=False)
        self.W_v = nn.Linear(d_model, n_kv_head * self.d, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)
    def forward(self, x):
        n, d = x.shape[1], self.d
        q, k, v = self.W_q(x), self.W_k(x), self.W_v(x)
        mask = torch.triu(torch.ones(n, n), diagonal=1).bool()
        out = []
        for h in range(self.n_head):
            g = 0
            s = q[:, :, h * d : (h + 1) * d] @ k[:, :, g * d : (g + 1) * d].transpose(1, 2) / math.sqrt(d)
            s[:, mask] = float("-inf")
            out.append(s.softmax(-1) @ v[:, :, g * d : (g + 1) * d])
        return self.W_o(torch.cat(out, -1))
