import torch
import torch.nn as nn

class AdditiveAttention(nn.Module):
    def __init__(self, num_hiddens, dropout):
        super().__init__()
        self.W_q = nn.LazyLinear(num_hiddens, bias=False)
        self.W_k = nn.LazyLinear(num_hiddens, bias=False)
        self.w_v = nn.Linear(num_hiddens, 1, bias=False)
        self.p = dropout

    def forward(self, queries, keys, values, valid_lens):
        k = self.W_k(keys)
        columns = []
        for q in self.W_q(queries).unbind(1):
            columns.append(self.w_v((q[:, None] + k).tanh())[..., 0])
        scores = torch.stack(columns, dim=1)
        if valid_lens is not None:
            lens = valid_lens.reshape(len(keys), -1, 1)
            scores = scores + torch.where(torch.arange(keys.shape[1], device=keys.device) < lens, 0.0, -1e4)
        weights = torch.softmax(scores.to(keys.dtype), -1)
        return nn.functional.dropout(weights, self.p, self.training) @ values
