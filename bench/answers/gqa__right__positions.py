import torch
from torch import nn
class GroupedQueryAttention(nn.Module):
    def __init__(self, d_model, n_head, n_kv_head):
        super().__init__()
        d = d_model // n_head
        self.n_head, self.n_kv = n_head, n_kv_head
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, n_kv_head * d, bias=False)
        self.W_v = nn.Linear(d_model, n_kv_head * d, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)
    def forward(self, x):
        q = self.W_q(x).unflatten(-1, (self.n_head, -1))
        k = self.W_k(x).unflatten(-1, (self.n_kv, -1)).repeat_interleave(self.n_head // self.n_kv, 2)
        v = self.W_v(x).unflatten(-1, (self.n_kv, -1)).repeat_interleave(self.n_head // self.n_kv, 2)
        rows = []
        for t in range(x.shape[1]):
            w = ((q[:, t : t + 1] * k[:, : t + 1]).sum(-1) / q.shape[-1] ** 0.5).softmax(1)
            rows.append((w.unsqueeze(-1) * v[:, : t + 1]).sum(1).flatten(1))
        return self.W_o(torch.stack(rows, 1))
