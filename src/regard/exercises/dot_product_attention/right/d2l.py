import math
import torch
from torch import nn

def masked_softmax(X, valid_lens):
    if valid_lens is None:
        return nn.functional.softmax(X, dim=-1)
    rows = X.reshape(-1, X.shape[-1]).clone()
    if valid_lens.dim() == 1:
        valid_lens = torch.repeat_interleave(valid_lens, X.shape[1])
    lens = valid_lens.reshape(-1)
    keep = torch.arange(rows.size(1), dtype=torch.float32, device=X.device)[None, :] < lens[:, None]
    rows[~keep] = -1e6
    return nn.functional.softmax(rows.reshape(X.shape), dim=-1)

class DotProductAttention(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def forward(self, queries, keys, values, valid_lens=None):
        d = queries.shape[-1]
        scores = torch.bmm(queries, keys.transpose(1, 2)) / math.sqrt(d)
        self.attention_weights = masked_softmax(scores, valid_lens)
        return torch.bmm(self.dropout(self.attention_weights), values), self.attention_weights
