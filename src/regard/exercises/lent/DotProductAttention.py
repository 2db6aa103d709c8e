import math
import torch
from torch import nn

class DotProductAttention(nn.Module):
    """Returns one tensor, and keeps its weights in `attention_weights`, as d2l's does."""

    def __init__(self, dropout=0.0, num_heads=None):
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def forward(self, queries, keys, values, valid_lens=None):
        scores = queries @ keys.transpose(1, 2) / math.sqrt(queries.shape[-1])
        self.attention_weights = masked_softmax(scores, valid_lens)
        return self.dropout(self.attention_weights) @ values
