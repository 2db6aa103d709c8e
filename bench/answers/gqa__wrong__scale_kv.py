import torch
from torch import nn


class GroupedQueryAttention(nn.Module):
    def __init__(self, d_model, n_head, n_kv_head):
        super().__init__()
        self.n_head, self.n_kv_head = n_head, n_kv_head
        self.d = d_model // n_head
        self.scale = (d_model // n_kv_head) ** -0.5
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, n_kv_head * self.d, bias=False)
        self.W_v = nn.Linear(d_model, n_kv_head * self.d, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x):
        b, n, c = x.shape
        q = self.W_q(x).view(b, n, self.n_head, self.d).transpose(1, 2)
        k = self.W_k(x).view(b, n, self.n_kv_head, self.d).transpose(1, 2)
        v = self.W_v(x).view(b, n, self.n_kv_head, self.d).transpose(1, 2)
        mask = torch.ones(n, n, dtype=torch.bool, device=x.device).tril()
        outs = []
        for h in range(self.n_head):
            j = h // (self.n_head // self.n_kv_head)
            s = (q[:, h] @ k[:, j].transpose(1, 2)) * self.scale
            outs.append(s.masked_fill(~mask, float("-inf")).softmax(-1) @ v[:, j])
        return self.W_o(torch.cat(outs, dim=-1))
