import math
import torch
from torch import nn

class DotProductAttention(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def forward(self, queries, keys, values, valid_lens=None):
        d = queries.shape[-1]
        scores = torch.bmm(queries, keys.transpose(1, 2))
        scores = scores / math.sqrt(d)
        hidden = torch.zeros_like(scores, dtype=torch.bool)
        if valid_lens is not None:
            if valid_lens.dim() == 1:
                lens = valid_lens[:, None]
            else:
                lens = valid_lens
            position = torch.arange(keys.shape[1], device=keys.device)
            hidden = (position >= lens[:, :, None]).expand_as(scores)
        scores = scores.masked_fill(hidden, float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        weights = weights.masked_fill(hidden, 0.0)
        output = torch.bmm(self.dropout(weights), values)
        return output, weights
