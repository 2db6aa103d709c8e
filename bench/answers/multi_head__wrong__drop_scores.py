import torch
from torch import nn
class MultiHeadAttention(nn.Module):
    def __init__(self, num_hiddens, num_heads, dropout, bias=False):
        super().__init__()
        self.h, self.dk = num_heads, num_hiddens // num_heads
        self.W_q = nn.Linear(num_hiddens, num_hiddens, bias)
        self.W_k = nn.Linear(num_hiddens, num_hiddens, bias)
        self.W_v = nn.Linear(num_hiddens, num_hiddens, bias)
        self.W_o = nn.Linear(num_hiddens, num_hiddens, bias)
        self.drop = nn.Dropout(dropout)
    def transpose_qkv(self, X):
        b, n, _ = X.shape
        return X.view(b, n, self.h, self.dk).transpose(1, 2).reshape(b * self.h, n, self.dk)
    def transpose_output(self, X):
        return torch.cat(X.reshape(-1, self.h, *X.shape[1:]).unbind(1), -1)
    def forward(self, queries, keys, values, valid_lens):
        q = torch.stack(self.W_q(queries).chunk(self.h, -1), 1)
        k = torch.stack(self.W_k(keys).chunk(self.h, -1), 1)
        v = torch.stack(self.W_v(values).chunk(self.h, -1), 1)
        s = q.matmul(k.transpose(2, 3)).div(self.dk ** 0.5)
        if valid_lens is not None:
            n = valid_lens.reshape(len(valid_lens), 1, -1, 1)
            s = s.masked_fill(torch.arange(s.shape[-1], device=s.device) >= n, -1e18)
        o = self.drop(s).softmax(-1).matmul(v)
        return self.W_o(torch.cat(o.unbind(1), -1))
