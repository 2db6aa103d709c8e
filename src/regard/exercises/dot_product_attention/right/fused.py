import torch
from torch import nn
from torch.nn import functional as F

class DotProductAttention(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.p = dropout

    def forward(self, queries, keys, values, valid_lens=None):
        added = None
        if valid_lens is not None:
            lens = valid_lens if valid_lens.dim() == 2 else valid_lens[:, None]
            see = torch.arange(keys.shape[1], device=keys.device) < lens[..., None]
            added = torch.zeros(see.shape, dtype=queries.dtype, device=keys.device)
            added = added.masked_fill(~see, torch.finfo(queries.dtype).min)
        p = self.p if self.training else 0.0
        out = F.scaled_dot_product_attention(queries, keys, values, attn_mask=added, dropout_p=p)
        one_hot = torch.eye(keys.shape[1], dtype=keys.dtype, device=keys.device).expand(len(keys), -1, -1)
        return out, F.scaled_dot_product_attention(queries, keys, one_hot, attn_mask=added)
