import math
import torch
from torch import nn
class CrossAttention(nn.Module):
    def __init__(self, d_model, d_context, n_head):
        super().__init__()
        self.n_head, self.d = n_head, d_model // n_head
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_context, d_model, bias=False)
        self.W_v = nn.Linear(d_context, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)
    def forward(self, x, context, lengths=None):
        Q, K, V = self.W_q(x), self.W_k(context), self.W_v(context)
        heads = []
        for i in range(self.n_head):
            sl = slice(i * self.d, (i + 1) * self.d)
            S = torch.bmm(Q[..., sl], K[..., sl].transpose(1, 2)) / math.sqrt(self.d)
            if lengths is not None:
                for b, n in enumerate(lengths.tolist()):
                    S[b, :, n:] = float("-inf")
            A = torch.softmax(S, -1)
            heads.append(torch.bmm(A, V[..., sl]))
        return x + self.W_o(torch.cat(heads, -1))
