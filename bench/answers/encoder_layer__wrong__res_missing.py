import copy, math
import torch
import torch.nn as nn
def attention(query, key, value, mask=None, dropout=None):
    d_k = query.size(-1)
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    p_attn = scores.softmax(dim=-1)
    if dropout is not None:
        p_attn = dropout(p_attn)
    return torch.matmul(p_attn, value), p_attn
class EncoderLayer(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, dropout):
        super().__init__()
        assert d_model % num_heads == 0
        self.d_k = d_model // num_heads
        self.h = num_heads
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)
        self.linear1 = nn.Linear(d_model, d_ff)
        self.linear2 = nn.Linear(d_ff, d_model)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)
        self.attn = None
    def self_attn(self, x, mask):
        nbatches = x.size(0)
        query, key, value = [lin(x).view(nbatches, -1, self.h, self.d_k).transpose(1, 2) for lin in (self.W_q, self.W_k, self.W_v)]
        y, self.attn = attention(query, key, value, mask=mask, dropout=self.dropout)
        y = y.transpose(1, 2).contiguous().view(nbatches, -1, self.h * self.d_k)
        return self.W_o(y)
    def forward(self, x, valid_lens=None):
        mask = None
        if valid_lens is not None:
            mask = (torch.arange(x.size(1), device=x.device)[None, :] < valid_lens[:, None])[:, None, None, :]
        x = self.norm1(x + self.dropout(self.self_attn(x, mask)))
        return self.norm2(self.dropout(self.linear2(self.dropout(self.linear1(x).relu()))))
