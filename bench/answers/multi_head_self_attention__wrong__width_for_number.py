import torch, math
from torch import nn
class MultiHeadSelfAttention(nn.Module):
    def __init__(self, input_size, hidden, num_heads, causal=False, dropout=0):
        super().__init__()
        if hidden % num_heads: raise ValueError("no")
        self.num_heads, self.causal, self.d = num_heads, causal, hidden // num_heads
        self.q = nn.Linear(input_size, hidden); self.k = nn.Linear(input_size, hidden); self.v = nn.Linear(input_size, hidden)
        self.mix = nn.Linear(hidden, hidden)
        self.drop = nn.Dropout(dropout)
    def forward(self, x, return_attention=False):
        B, N, _ = x.shape
        q, k, v = (f(x).reshape(B, N, -1, self.num_heads).transpose(1, 2) for f in (self.q, self.k, self.v))
        s = q @ k.transpose(-2, -1) / math.sqrt(self.d)
        if self.causal:
            s = s.masked_fill(torch.ones(N, N, dtype=torch.bool, device=x.device).triu(1), float("-inf"))
        a = s.softmax(-1)
        o = (self.drop(a) @ v).transpose(1, 2).reshape(B, N, -1)
        return (self.mix(o), a.flatten(0, 1)) if return_attention else self.mix(o)
