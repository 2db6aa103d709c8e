import torch
from torch import nn
from torch.nn import functional as F

class DecoderBlock(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, dropout):
        super().__init__()
        self.num_heads = num_heads
        for name in ("W_q", "W_k", "W_v", "W_o"):
            setattr(self, name, nn.Linear(d_model, d_model, bias=False))
        self.linear1, self.linear2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def attention(self, x):
        b, n, d = x.size()
        heads = [w(x).view(b, n, self.num_heads, d // self.num_heads).transpose(1, 2)
                 for w in (self.W_q, self.W_k, self.W_v)]
        y = F.scaled_dot_product_attention(*heads, is_causal=True)
        return self.W_o(y.transpose(1, 2).contiguous().view(b, n, d))

    def forward(self, x):
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.linear2(F.gelu(self.linear1(self.norm2(x)), approximate="tanh")))
