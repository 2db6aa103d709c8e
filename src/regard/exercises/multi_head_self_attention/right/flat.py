import torch
import torch.nn as nn
import torch.nn.functional as F

class MultiHeadSelfAttention(nn.Module):
    def __init__(self, input_size, hidden, num_heads, causal=False, dropout=0):
        if hidden % num_heads:
            raise ValueError(f"hidden {hidden} is no multiple of num_heads {num_heads}")
        super().__init__()
        self.k = nn.Linear(input_size, hidden)
        self.q = nn.Linear(input_size, hidden)
        self.v = nn.Linear(input_size, hidden)
        self.mix = nn.Linear(hidden, hidden)
        self.dropout = nn.Dropout(dropout)
        self.num_heads, self.head_size = num_heads, hidden // num_heads
        self.scale = self.head_size ** 0.5
        self.causal = causal

    def forward(self, x, return_attention=False):
        bs, seq, _ = x.shape

        def flat(y):
            y = y.view(bs, seq, self.num_heads, self.head_size).transpose(1, 2)
            return y.reshape(bs * self.num_heads, seq, self.head_size)

        q, k, v = flat(self.q(x)), flat(self.k(x)), flat(self.v(x))
        scores = torch.bmm(q, k.transpose(1, 2)) / self.scale
        if self.causal:
            mask = torch.triu(torch.ones(seq, seq, dtype=torch.bool, device=scores.device), diagonal=1)
            scores = scores.masked_fill(mask, float("-inf"))
        probs = F.softmax(scores, dim=-1)
        att = torch.bmm(self.dropout(probs), v).view(bs, self.num_heads, seq, self.head_size)
        att = self.mix(att.transpose(1, 2).contiguous().view(bs, seq, -1))
        return (att, probs) if return_attention else att
