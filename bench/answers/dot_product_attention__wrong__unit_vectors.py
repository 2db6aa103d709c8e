import torch
from torch import nn
from torch.nn.functional import normalize


class DotProductAttention(nn.Module):
    def __init__(self, dropout: float):
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def forward(self, queries, keys, values, valid_lens=None):
        # normalised, so that long vectors do not dominate
        sim = torch.einsum("bqd,bkd->bqk", normalize(queries, dim=-1), normalize(keys, dim=-1))
        sim = sim / queries.shape[-1] ** 0.5
        if valid_lens is not None:
            limit = valid_lens.view(len(sim), -1, 1)
            seen = torch.arange(sim.shape[-1], device=sim.device) < limit
            sim = sim.masked_fill(~seen, float("-inf"))
        alpha = torch.nan_to_num(torch.softmax(sim, -1))
        return torch.einsum("bqk,bkv->bqv", self.dropout(alpha), values), alpha
