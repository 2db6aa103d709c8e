import torch
from torch import nn
from torch.nn.functional import dropout as drop


class MultiHeadSelfAttention(nn.Module):
    def __init__(self, input_size, hidden, num_heads, causal=False, dropout=0):
        super().__init__()
        if hidden % num_heads != 0:
            raise ValueError(f"{num_heads} heads do not divide {hidden}")
        self.q, self.k, self.v = (nn.Linear(input_size, hidden) for _ in range(3))
        self.mix = nn.Linear(hidden, hidden)
        self.num_heads, self.causal, self.p = num_heads, causal, dropout

    def forward(self, x, return_attention=False):
        B, T, _ = x.shape
        q, k, v = (f(x).unflatten(-1, (self.num_heads, -1)) for f in (self.q, self.k, self.v))
        e = torch.einsum("bthd,bshd->bhts", q, k) / q.shape[-1] ** 0.5
        if self.causal:
            future = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
            e = e.masked_fill(future, -torch.inf)
        w = e.softmax(-1)
        y = self.mix(torch.einsum("bhts,bshd->bthd", drop(w, p=self.p), v).flatten(2))
        return (y, w.flatten(0, 1)) if return_attention else y
