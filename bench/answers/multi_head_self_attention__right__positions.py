import torch
from torch import nn
class MultiHeadSelfAttention(nn.Module):
    def __init__(self, input_size, hidden, num_heads, causal=False, dropout=0):
        if hidden % num_heads != 0:
            raise ValueError("no")
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(input_size, hidden) for _ in range(3))
        self.mix = nn.Linear(hidden, hidden)
        self.num_heads, self.causal, self.dropout = num_heads, causal, dropout
    def forward(self, x, return_attention=False):
        b, n, _ = x.shape
        q, k, v = (f(x).reshape(b, n, self.num_heads, -1).movedim(2, 1).flatten(0, 1) for f in (self.q, self.k, self.v))
        q = q * q.shape[-1] ** -0.5
        att = []
        for i in range(n):
            last = i + 1 if self.causal else n
            w = torch.einsum("cd,cjd->cj", q[:, i], k[:, :last]).softmax(-1)
            att.append(nn.functional.pad(w, (0, n - last)))
        att = torch.stack(att, 1)
        o = nn.functional.dropout(att, self.dropout, self.training) @ v
        o = self.mix(o.unflatten(0, (b, -1)).movedim(1, 2).flatten(2))
        if not return_attention:
            return o
        return o, att
