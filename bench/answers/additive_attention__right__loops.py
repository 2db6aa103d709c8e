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
        outs = []
        for b in range(queries.shape[0]):
            q, k, v = self.W_q(queries[b]), self.W_k(keys[b]), values[b]
            rows = []
            for i in range(q.shape[0]):
                s = self.w_v(torch.tanh(q[i] + k)).squeeze(-1)
                n = k.shape[0]
                if valid_lens is not None:
                    n = int(valid_lens[b] if valid_lens.dim() == 1 else valid_lens[b, i])
                if n == 0:
                    rows.append(torch.zeros_like(v[0]))
                    continue
                w = self.drop(torch.softmax(s[:n], 0))
                rows.append(w @ v[:n])
            outs.append(torch.stack(rows))
        return torch.stack(outs)
