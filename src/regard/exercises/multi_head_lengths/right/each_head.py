import torch
from torch import nn

class MultiHeadAttention(nn.Module):
    def __init__(self, num_heads, embedding_dim, qk_length, value_length):
        super().__init__()
        self.num_heads, self.qk_length, self.value_length = num_heads, qk_length, value_length
        self.W_q = nn.Linear(embedding_dim, num_heads * qk_length, bias=False)
        self.W_k = nn.Linear(embedding_dim, num_heads * qk_length, bias=False)
        self.W_v = nn.Linear(embedding_dim, num_heads * value_length, bias=False)
        self.W_o = nn.Linear(num_heads * value_length, embedding_dim, bias=False)

    def forward(self, Q, K, V):
        Q, K, V = self.W_q(Q), self.W_k(K), self.W_v(V)
        heads = []
        for i in range(self.num_heads):
            a, b = i * self.qk_length, (i + 1) * self.qk_length
            scores = torch.bmm(Q[..., a:b], K[..., a:b].transpose(1, 2)) * self.qk_length ** -0.5
            e = torch.exp(scores - scores.max(dim=-1, keepdim=True)[0])
            A = e / e.sum(dim=-1, keepdim=True)
            heads.append(torch.bmm(A, V[..., i * self.value_length:(i + 1) * self.value_length]))
        return self.W_o(torch.cat(heads, dim=-1))
