import torch
from torch import nn


def masked_softmax(X, valid_lens):
    if valid_lens is None:
        return nn.functional.softmax(X, dim=-1)
    if valid_lens.dim() == 1:
        valid_lens = valid_lens[:, None].expand(X.shape[0], X.shape[1])
    mask = torch.arange(X.shape[-1], device=X.device)[None, None] < valid_lens[..., None]
    e = torch.exp(X - X.amax(dim=-1, keepdim=True)) * mask
    return e / e.sum(dim=-1, keepdim=True).clamp(min=1e-12)


class DotProductAttention(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.softmax = nn.Softmax(dim=-1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, queries, keys, values, valid_lens=None):
        d = queries.shape[-1]
        weights = masked_softmax(queries @ keys.transpose(-1, -2) / d ** 0.5, valid_lens)
        output = self.dropout(self.softmax(weights)) @ values
        return output, weights
