import torch
from torch import nn
class GroupedQueryAttention(nn.Module):
    def __init__(self, d_model, n_head, n_kv_head):
        super().__init__()
        d = d_model // n_head
        self.g, self.kv, self.d = n_head // n_kv_head, n_kv_head, d
        self.W_q, self.W_o = nn.Linear(d_model, d_model, bias=False), nn.Linear(d_model, d_model, bias=False)
        self.W_k, self.W_v = nn.Linear(d_model, n_kv_head * d, bias=False), nn.Linear(d_model, n_kv_head * d, bias=False)
    def forward(self, x):
        b, n, _ = x.shape
        q = self.W_q(x).reshape(b, n, self.g, self.kv, self.d).transpose(2, 3)
        k = self.W_k(x).reshape(b, n, self.kv, self.d)
        v = self.W_v(x).reshape(b, n, self.kv, self.d)
        s = torch.einsum("bikgd,bjkd->bkgij", q, k) * self.d ** -0.5
        i = torch.arange(n, device=x.device)
        s = torch.where(i[:, None] >= i[None, :], s, s.new_tensor(-1e30))
        o = torch.einsum("bkgij,bjkd->bikgd", s.softmax(-1), v)
        return self.W_o(o.reshape(b, n, -1))
