import torch
from torch import nn

class GroupedQueryAttention(nn.Module):
    def __init__(self, d_model, n_head, n_kv_head):
        super().__init__()
        self.n_kv_head, self.group, d = n_kv_head, n_head // n_kv_head, d_model // n_head
        self.q_proj = nn.Linear(d_model, d_model, bias=False)
        self.k_proj = nn.Linear(d_model, n_kv_head * d, bias=False)
        self.v_proj = nn.Linear(d_model, n_kv_head * d, bias=False)
        self.o_proj = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x):
        q = self.q_proj(x).unflatten(-1, (self.n_kv_head, self.group, -1))
        k = self.k_proj(x).unflatten(-1, (self.n_kv_head, -1))
        v = self.v_proj(x).unflatten(-1, (self.n_kv_head, -1))
        scores = torch.einsum("bnkgd,bmkd->bkgnm", q, k) * q.shape[-1] ** -0.5
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(later, float("-inf")).softmax(-1)
        return self.o_proj(torch.einsum("bkgnm,bmkd->bnkgd", weights, v).flatten(2))
