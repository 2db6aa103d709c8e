import torch
from torch import nn
from torch.nn import functional as F

class AdditiveAttention(nn.Module):
    def __init__(self, num_hiddens, dropout=0.1):
        super().__init__()
        self.num_hiddens = num_hiddens
        self.W_q = nn.LazyLinear(num_hiddens, bias=False)
        self.W_k = nn.LazyLinear(num_hiddens, bias=False)
        self.w_v = nn.LazyLinear(1, bias=False)
        self.dropout = nn.Dropout(dropout)

    def score(self, q, k):
        Q, K = q.shape[1], k.shape[1]
        left = self.W_q(q).repeat_interleave(K, dim=1)
        right = self.W_k(k).repeat(1, Q, 1)
        return self.w_v(torch.tanh(left + right)).view(-1, Q, K)

    def forward(self, queries, keys, values, valid_lens=None):
        scores = self.score(queries, keys)
        if valid_lens is not None:
            steps = torch.arange(keys.shape[1], device=scores.device)
            if valid_lens.dim() == 1:
                valid_lens = valid_lens[:, None]
            scores = scores.masked_fill(~(steps[None, None] < valid_lens[:, :, None]), float("-inf"))
        weights = F.softmax(scores, dim=2)
        context = torch.einsum("bqk,bkv->bqv", self.dropout(weights), values)
        return context, weights
