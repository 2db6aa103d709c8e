import torch
from torch import nn
from torch.nn import functional as F

class MultiHeadAttention(nn.Module):
    def __init__(self, num_hiddens, num_heads, dropout, bias=False):
        super().__init__()
        self.h, self.p = num_heads, dropout
        for name in ("W_q", "W_k", "W_v", "W_o"):
            setattr(self, name, nn.LazyLinear(num_hiddens, bias=bias))

    def transpose_qkv(self, X):
        b, n, d = X.shape
        return X.view(b, n, self.h, d // self.h).transpose(1, 2).flatten(0, 1)

    def transpose_output(self, X):
        bh, n, d = X.shape
        return X.unflatten(0, (-1, self.h)).transpose(1, 2).flatten(2)

    def forward(self, queries, keys, values, valid_lens):
        q, k, v = (self.transpose_qkv(layer(x)).unflatten(0, (-1, self.h)) for layer, x in
                   ((self.W_q, queries), (self.W_k, keys), (self.W_v, values)))
        mask = None
        if valid_lens is not None:
            lens = valid_lens.reshape(len(q), 1, -1, 1)
            mask = torch.arange(k.shape[2], device=k.device) < lens
        p = self.p if self.training else 0.0
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p)
        return self.W_o(out.transpose(1, 2).flatten(2))
