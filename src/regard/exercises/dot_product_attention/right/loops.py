import torch
from torch import nn

class DotProductAttention(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.dropout = dropout

    def forward(self, queries, keys, values, valid_lens=None):
        B, Q, d = queries.shape
        weights = torch.zeros(B, Q, keys.shape[1], dtype=queries.dtype, device=queries.device)
        for b in range(B):
            for i in range(Q):
                n = keys.shape[1]
                if valid_lens is not None:
                    n = int(valid_lens[b] if valid_lens.dim() == 1 else valid_lens[b, i])
                weights[b, i, :n] = torch.softmax(keys[b, :n] @ queries[b, i] / d ** 0.5, dim=0)
        dropped = nn.functional.dropout(weights, self.dropout, training=self.training)
        return dropped @ values, weights
