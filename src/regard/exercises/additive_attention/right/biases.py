import torch
from torch import nn

def masked_softmax(X, valid_lens):
    if valid_lens is None:
        return nn.functional.softmax(X, dim=-1)
    rows = X.reshape(-1, X.shape[-1])
    if valid_lens.dim() == 1:
        valid_lens = torch.repeat_interleave(valid_lens, X.shape[1])
    keep = torch.arange(rows.size(1), device=X.device)[None, :] < valid_lens.reshape(-1)[:, None]
    return nn.functional.softmax(torch.where(keep, rows, rows.new_full((), -1e6)).view(X.shape), dim=-1)

class AdditiveAttention(nn.Module):
    def __init__(self, num_hiddens, dropout, **kwargs):
        super().__init__(**kwargs)
        self.W_k = nn.LazyLinear(num_hiddens)
        self.W_q = nn.LazyLinear(num_hiddens)
        self.w_v = nn.LazyLinear(1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, queries, keys, values, valid_lens):
        features = self.W_q(queries).unsqueeze(2) + self.W_k(keys).unsqueeze(1)
        self.attention_weights = masked_softmax(self.w_v(torch.tanh(features)).squeeze(-1), valid_lens)
        return torch.bmm(self.dropout(self.attention_weights), values)
