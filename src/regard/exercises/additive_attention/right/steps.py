import math
import torch
from torch import nn

class AdditiveAttention(nn.Module):
    def __init__(self, num_hiddens, dropout):
        super().__init__()
        self.W_q = nn.LazyLinear(num_hiddens, bias=False)
        self.W_k = nn.LazyLinear(num_hiddens, bias=False)
        self.w_v = nn.Linear(num_hiddens, 1, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, queries, keys, values, valid_lens):
        q = self.W_q(queries)
        k = self.W_k(keys)
        both = q[:, :, None, :] + k[:, None, :, :]
        active = torch.tanh(both)
        scores = self.w_v(active).squeeze(-1)
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
        return output
