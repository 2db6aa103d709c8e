import torch
from torch import nn
class MultiHeadAttention(nn.Module):
    def __init__(self, num_hiddens, num_heads, dropout, bias=False):
        super().__init__()
        self.num_heads = num_heads
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(num_hiddens, num_hiddens, bias=bias) for _ in range(4))
        self.dropout = nn.Dropout(dropout)
    def forward(self, queries, keys, values, valid_lens):
        def heads(layer, X):
            y = torch.einsum("bnd,hkd->bhnk", X, layer.weight.unflatten(0, (self.num_heads, -1)))
            if layer.bias is not None:
                y = y + layer.bias.unflatten(0, (self.num_heads, 1, -1))
            return y
        q, k, v = heads(self.W_q, queries), heads(self.W_k, keys), heads(self.W_v, keys)
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5
        if valid_lens is not None:
            cols = torch.arange(k.shape[2], device=k.device)
            ok = cols < valid_lens[:, None, None, None] if valid_lens.dim() == 1 else cols < valid_lens[:, None, :, None]
            scores = torch.where(ok, scores, torch.tensor(float("-inf"), device=k.device, dtype=k.dtype))
        out = torch.einsum("bhqk,bhkd->bqhd", self.dropout(torch.softmax(scores, -1)), v)
        return self.W_o(out.flatten(-2))
    def transpose_qkv(self, X):
        return X.unflatten(-1, (self.num_heads, -1)).transpose(1, 2).flatten(0, 1)
    def transpose_output(self, X):
        return X.unflatten(0, (-1, self.num_heads)).transpose(1, 2).flatten(2)
