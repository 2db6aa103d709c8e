import torch
from torch import nn
import torch.nn.functional as F
class DotProductAttention(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.drop = nn.Dropout(dropout)
    def forward(self, queries, keys, values, valid_lens=None):
        b, n, d = queries.shape
        m = keys.shape[1]
        bias = queries.new_zeros(b, n, m)
        if valid_lens is not None:
            if valid_lens.dim() == 1:
                valid_lens = valid_lens.unsqueeze(-1).repeat(1, n)
            hidden = torch.arange(m, device=queries.device).expand(b, n, m).ge(valid_lens.unsqueeze(-1))
            bias.masked_fill_(hidden, float("-inf"))
        scores = torch.baddbmm(bias, queries, keys.mT, alpha=d ** -0.5)
        weights = torch.nan_to_num(F.softmax(scores, -1))
        return self.drop(weights).bmm(values), weights
