import torch
from torch import nn


class DotProductAttention(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def forward(self, queries, keys, values, valid_lens=None):
        scores = queries @ keys.mT / queries.shape[-1] ** 0.5
        visible = torch.ones_like(scores, dtype=torch.bool)
        if valid_lens is not None:
            lens = valid_lens.reshape(len(valid_lens), -1, 1)
            visible = (torch.arange(keys.shape[1], device=keys.device) < lens).expand_as(scores)
        weights = scores.masked_fill(~visible, torch.finfo(scores.dtype).min).softmax(-1)
        weights = self.dropout(weights * visible)
        return weights @ values, weights
