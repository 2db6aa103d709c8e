import torch
from torch import Tensor, nn


class MultiHeadAttention(nn.Module):
    def __init__(self, num_heads: int, embedding_dim: int, qk_length: int, value_length: int):
        super().__init__()
        self.num_heads, self.qk_length, self.value_length = num_heads, qk_length, value_length
        self.W_q = nn.Linear(embedding_dim, num_heads * qk_length)
        self.W_k = nn.Linear(embedding_dim, num_heads * qk_length)
        self.W_v = nn.Linear(embedding_dim, num_heads * value_length)
        self.W_o = nn.Linear(num_heads * value_length, embedding_dim)

    def split_heads(self, x: Tensor, vec_length: int) -> Tensor:
        return torch.stack(x.split(vec_length, dim=-1), dim=1)

    def combine_heads(self, x: Tensor) -> Tensor:
        return torch.cat(x.unbind(1), dim=-1)

    def forward(self, Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
        q = self.split_heads(self.W_q(Q), self.qk_length)
        k = self.split_heads(self.W_k(K), self.qk_length)
        v = self.split_heads(self.W_v(V), self.value_length)
        # keys times queries: [batch, head, key, query]
        affinity = torch.einsum("bhkd,bhqd->bhkq", k, q) / self.qk_length**0.5
        affinity = affinity.softmax(dim=-1)
        return self.W_o(self.combine_heads(torch.einsum("bhkq,bhkv->bhqv", affinity, v)))
