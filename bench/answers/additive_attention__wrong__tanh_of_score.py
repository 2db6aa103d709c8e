import torch
from torch import nn


class AdditiveAttention(nn.Module):
    def __init__(self, num_hiddens, dropout):
        super().__init__()
        self.W_q = nn.LazyLinear(num_hiddens, bias=False)
        self.W_k = nn.LazyLinear(num_hiddens, bias=False)
        self.w_v = nn.LazyLinear(1, bias=False)
        self.drop = nn.Dropout(dropout)

    def forward(self, queries, keys, values, valid_lens):
        both = self.W_q(queries)[:, :, None] + self.W_k(keys)[:, None]
        e = torch.tanh(self.w_v(both)[..., 0])
        if valid_lens is not None:
            lens = valid_lens.reshape(len(e), -1, 1)
            blocked = torch.arange(e.shape[2], device=e.device) >= lens
            e = e.masked_fill(blocked, float("-inf"))
        alpha = torch.nan_to_num(e.softmax(-1))
        return torch.einsum("bqk,bkv->bqv", self.drop(alpha), values)
