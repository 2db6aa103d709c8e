import torch
from torch import nn

class AdditiveAttention(nn.Module):
    """Returns one tensor, and keeps its weights in `attention_weights`, as d2l's does."""

    def __init__(self, num_hiddens, dropout=0.0, **kwargs):
        super().__init__()
        self.W_k = nn.LazyLinear(num_hiddens, bias=False)
        self.W_q = nn.LazyLinear(num_hiddens, bias=False)
        self.w_v = nn.LazyLinear(1, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, queries, keys, values, valid_lens=None):
        together = torch.tanh(self.W_q(queries)[:, :, None] + self.W_k(keys)[:, None])
        self.attention_weights = masked_softmax(self.w_v(together)[..., 0], valid_lens)
        return self.dropout(self.attention_weights) @ values
