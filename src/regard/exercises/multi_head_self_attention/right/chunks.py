import torch
from torch import nn

class MultiHeadSelfAttention(nn.Module):
    def __init__(self, input_size, hidden, num_heads, causal=False, dropout=0):
        super().__init__()
        if hidden % num_heads != 0:
            raise ValueError("num_heads must divide hidden")
        self.h, self.causal, self.p = num_heads, causal, dropout
        self.q, self.k, self.v = (nn.Linear(input_size, hidden) for _ in range(3))
        self.mix = nn.Linear(hidden, hidden)

    def forward(self, x, return_attention=False):
        q, k, v = (torch.cat(layer(x).chunk(self.h, dim=-1), dim=0) for layer in (self.q, self.k, self.v))
        scores = q @ k.mT * q.shape[-1] ** -0.5
        if self.causal:
            position = torch.arange(x.shape[1], device=x.device)
            low = torch.finfo(scores.dtype).min
            scores = torch.where(position[None, :] <= position[:, None], scores, low)
        attention = scores.softmax(-1)
        out = nn.functional.dropout(attention, self.p, self.training) @ v
        out = self.mix(torch.cat(out.chunk(self.h, dim=0), dim=-1))
        if return_attention:
            return out, torch.stack(attention.chunk(self.h), dim=1).flatten(0, 1)
        return out
