import torch
from torch import nn

class EncoderLayer(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, dropout):
        super().__init__()
        self.num_heads = num_heads
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
        self.linear1, self.linear2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def self_attention(self, x, valid_lens):
        b, n, d = x.shape
        layers = (self.W_q, self.W_k, self.W_v)
        q, k, v = (w(x).view(b, n, self.num_heads, -1).permute(0, 2, 1, 3) for w in layers)
        mask = None
        if valid_lens is not None:
            mask = (torch.arange(n, device=x.device)[None, :] < valid_lens[:, None])[:, None, None, :]
        out = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.W_o(out.permute(0, 2, 1, 3).contiguous().view(b, n, d))

    def forward(self, x, valid_lens=None):
        x = self.norm1(x + self.dropout(self.self_attention(x, valid_lens)))
        return self.norm2(x + self.dropout(self.linear2(self.dropout(nn.functional.relu(self.linear1(x))))))
