import math
import torch
from torch import nn

class MultiHeadSelfAttention(nn.Module):
    def __init__(self, input_size, hidden, num_heads, causal=False, dropout=0):
        super().__init__()
        if num_heads < 1 or hidden % num_heads:
            raise ValueError(f"cannot split {hidden} into {num_heads} heads")
        self.num_heads, self.d = num_heads, hidden // num_heads
        self.causal = causal
        self.q, self.k = nn.Linear(input_size, hidden), nn.Linear(input_size, hidden)
        self.v, self.mix = nn.Linear(input_size, hidden), nn.Linear(hidden, hidden)
        self.drop = nn.Dropout(dropout)

    def forward(self, x, return_attention=False):
        Q, K, V = self.q(x), self.k(x), self.v(x)
        heads, maps = [], []
        for i in range(self.num_heads):
            part = slice(i * self.d, (i + 1) * self.d)
            scores = torch.einsum("bid,bjd->bij", Q[:, :, part], K[:, :, part]) / math.sqrt(self.d)
            if self.causal:
                future = torch.full_like(scores, float("-inf")).triu(1)
                scores = scores + future
            weights = torch.softmax(scores, dim=-1)
            maps.append(weights)
            heads.append(self.drop(weights) @ V[:, :, part])
        out = self.mix(torch.cat(heads, dim=-1))
        return (out, torch.stack(maps, dim=1).flatten(0, 1)) if return_attention else out
