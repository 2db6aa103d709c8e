import torch
import torch.nn as nn
import torch.nn.functional as F
def _mask(scores, lens):
    if lens is None:
        return scores
    if lens.ndim == 1:
        lens = lens.unsqueeze(1).expand(-1, scores.size(1))
    m = torch.arange(scores.size(-1), device=scores.device)[None, None, :] < lens[:, :, None]
    return torch.where(m, scores, torch.full_like(scores, float("-inf")))
class AdditiveAttention(nn.Module):
    def __init__(self, num_hiddens, dropout, **kwargs):
        super(AdditiveAttention, self).__init__(**kwargs)
        self.W_k = nn.LazyLinear(num_hiddens, bias=False)
        self.W_q = nn.LazyLinear(num_hiddens, bias=False)
        self.w_v = nn.LazyLinear(1, bias=False)
        self.p = dropout
    def forward(self, queries, keys, values, valid_lens):
        q, k = self.W_q(queries), self.W_k(keys)
        scores = self.w_v((q[:, :, None, :].tanh() + k[:, None, :, :].tanh()))[..., 0]
        weights = F.softmax(_mask(scores, valid_lens), dim=-1)
        return torch.bmm(F.dropout(weights, self.p, self.training), values), weights
