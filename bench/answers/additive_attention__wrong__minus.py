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
        features = torch.tanh(self.W_q(queries).unsqueeze(2) - self.W_k(keys).unsqueeze(1))
        scores = torch.einsum("bqkh,h->bqk", features, self.w_v.weight[0])
        if valid_lens is not None:
            if valid_lens.dim() == 1:
                valid_lens = valid_lens[:, None]
            pos = torch.arange(keys.shape[1], device=keys.device)
            scores = scores.masked_fill(pos >= valid_lens[..., None], -1e6)
        weights = torch.exp(scores - torch.logsumexp(scores, -1, keepdim=True))
        self.attention_weights = weights
        return torch.einsum("bqk,bkv->bqv", self.dropout(weights), values)
