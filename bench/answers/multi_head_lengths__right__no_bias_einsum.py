import torch
from torch import nn
class MultiHeadAttention(nn.Module):
    def __init__(self, num_heads, embedding_dim, qk_length, value_length):
        super().__init__()
        self.h, self.d = num_heads, qk_length
        self.W_q = nn.Linear(embedding_dim, num_heads * qk_length, bias=False)
        self.W_k = nn.Linear(embedding_dim, num_heads * qk_length, bias=False)
        self.W_v = nn.Linear(embedding_dim, num_heads * value_length, bias=False)
        self.W_o = nn.Linear(num_heads * value_length, embedding_dim, bias=False)
    def split_heads(self, x, vec_length):
        return torch.stack(x.split(vec_length, dim=-1), dim=1)
    def combine_heads(self, x):
        return torch.cat([x[:, h] for h in range(x.shape[1])], dim=-1)
    def forward(self, Q, K, V):
        q = self.split_heads(self.W_q(Q), self.d)
        k = self.split_heads(self.W_k(K), self.d)
        v = self.split_heads(self.W_v(V), self.W_v.out_features // self.h)
        s = torch.einsum("bhqd,bhkd->bhqk", q, k) / torch.tensor(self.d, dtype=q.dtype, device=q.device).sqrt()
        s = s - s.amax(-1, keepdim=True)
        p = s.exp()
        p = p / p.sum(-1, keepdim=True)
        return self.W_o(self.combine_heads(torch.einsum("bhqk,bhkv->bhqv", p, v)))
