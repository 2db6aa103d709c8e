import torch
from torch import nn
from torch.nn import functional as F

class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads, self.d_k, self.d_v = num_heads, d_model // num_heads, 2 * d_model // num_heads
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, num_heads * self.d_v)
        self.W_o = nn.Linear(num_heads * self.d_v, d_model)

    def split_heads(self, x, width):
        return x.view(x.shape[0], x.shape[1], self.num_heads, width).transpose(1, 2)

    def forward(self, Q, K, V, mask=None):
        if mask is not None:
            mask = mask.bool()
            mask = mask.unsqueeze(1) if mask.dim() == 3 else mask
        q, k = self.split_heads(self.W_q(Q), self.d_k), self.split_heads(self.W_k(K), self.d_k)
        v = self.split_heads(self.W_v(V), self.d_v)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.W_o(out.transpose(1, 2).contiguous().view(out.shape[0], out.shape[2], -1))
