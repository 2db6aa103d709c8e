import torch
import torch.nn as nn

class DotProductAttention(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.drop = nn.Dropout(p=dropout)

    def forward(self, queries, keys, values, valid_lens=None):
        scores = torch.einsum("bqd,bkd->bqk", queries * queries.size(-1) ** -0.5, keys)
        if valid_lens is not None:
            if valid_lens.ndim == 1:
                valid_lens = valid_lens.unsqueeze(1).expand(-1, queries.size(1))
            mask = torch.arange(keys.size(1), device=keys.device).view(1, 1, -1) < valid_lens.unsqueeze(-1)
            scores = scores.masked_fill(mask == 0, -1e9)
        attention = scores.softmax(dim=-1)
        return torch.einsum("bqk,bkv->bqv", self.drop(attention), values), attention
