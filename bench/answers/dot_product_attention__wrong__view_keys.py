import math
import torch
from torch import nn
class DotProductAttention(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
    def forward(self, queries, keys, values, valid_lens=None):
        scores = queries @ keys.reshape(keys.size(0), keys.size(2), keys.size(1)) / math.sqrt(queries.size(-1))
        if valid_lens is not None:
            lens = valid_lens[:, None, None] if valid_lens.dim() == 1 else valid_lens[:, :, None]
            scores = scores.masked_fill(torch.arange(keys.size(1), device=keys.device) >= lens, -1e9)
        p_attn = scores.softmax(dim=-1)
        p_attn = self.dropout(p_attn)
        return torch.matmul(p_attn, values), p_attn
