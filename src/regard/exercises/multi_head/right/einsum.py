import torch
import torch.nn as nn

class MultiHeadAttention(nn.Module):
    def __init__(self, num_hiddens, num_heads, dropout, bias=False):
        super().__init__()
        self.num_heads = num_heads
        self.size = num_hiddens // num_heads
        self.W_q = nn.Linear(num_hiddens, num_hiddens, bias)
        self.W_k = nn.Linear(num_hiddens, num_hiddens, bias)
        self.W_v = nn.Linear(num_hiddens, num_hiddens, bias)
        self.W_o = nn.Linear(num_hiddens, num_hiddens, bias)
        self.drop = nn.Dropout(dropout)

    def forward(self, queries, keys, values, valid_lens):
        heads = []
        for head in range(self.num_heads):
            part = slice(head * self.size, (head + 1) * self.size)
            q, k, v = self.W_q(queries)[..., part], self.W_k(keys)[..., part], self.W_v(values)[..., part]
            scores = torch.einsum("bqd,bkd->bqk", q, k) * self.size ** -0.5
            if valid_lens is not None:
                lens = valid_lens[:, None] if valid_lens.dim() == 1 else valid_lens
                position = torch.arange(k.shape[1], device=k.device)[None, None]
                nothing = torch.full_like(scores, float("-inf"))
                scores = torch.where(position < lens[..., None], scores, nothing)
            heads.append(self.drop(scores.softmax(-1)) @ v)
        return self.W_o(torch.cat(heads, dim=-1))
