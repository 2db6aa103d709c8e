import math
import torch
from torch import nn
import torch.nn.functional as F
class DecoderBlock(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, dropout):
        super().__init__()
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)
        self.linear1, self.linear2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.h, self.drop = num_heads, nn.Dropout(dropout)
    def forward(self, x):
        B, T, C = x.shape
        y = self.norm1(x)
        q, k, v = (f(y).view(B, T, self.h, C // self.h).transpose(1, 2) for f in (self.W_q, self.W_k, self.W_v))
        att = (q @ k.transpose(-2, -1)) / math.sqrt(C // self.h)
        att = att.masked_fill(torch.tril(torch.ones(T, T, device=x.device)) == 0, float("-inf"))
        y = (att.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C)
        x = x + self.drop(self.W_o(y))
        return x + self.drop(self.linear2(F.gelu(self.linear1(self.norm2(x)))))
class TinyGPT(nn.Module):
    def __init__(self, vocab, d_model, num_heads, d_ff, n_layer, context):
        super().__init__()
        self.tokens = nn.Embedding(vocab, d_model)
        self.positions = nn.Embedding(context, d_model)
        self.blocks = nn.Sequential(*[DecoderBlock(d_model, num_heads, d_ff, 0.0) for _ in range(n_layer)])
        self.norm = nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, vocab, bias=False)
    def forward(self, ids):
        pos = torch.arange(ids.size(1), device=ids.device)
        x = self.tokens(ids) + self.positions(pos)
        return self.head(self.norm(self.blocks(x)))
