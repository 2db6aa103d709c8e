import math
import torch
from torch import nn

class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)
        self.W_o = nn.Linear(d_model, d_model)

    def scaled_dot_product_attention(self, Q, K, V, mask=None):
        d_k = Q.size(-1)
        attn_scores = torch.matmul(Q, K.transpose(-2, -1)) / math.sqrt(d_k)
        if mask is not None:
            if mask.dim() == 2:
                mask = mask[None, None]
            else:
                mask = mask[:, None]
            attn_scores = attn_scores.masked_fill(mask == 0, -1e4)
        attn_probs = torch.softmax(attn_scores, dim=-1)
        return torch.matmul(attn_probs, V), attn_probs

    def split_heads(self, x):
        batch, length, d_model = x.size()
        return x.view(batch, length, self.num_heads, d_model // self.num_heads).permute(0, 2, 1, 3)

    def combine_heads(self, x):
        batch, heads, length, d_k = x.size()
        return x.permute(0, 2, 1, 3).contiguous().view(batch, length, heads * d_k)

    def forward(self, Q, K, V, mask=None):
        Q, K, V = self.split_heads(self.W_q(Q)), self.split_heads(self.W_k(K)), self.split_heads(self.W_v(V))
        out, attn = self.scaled_dot_product_attention(Q, K, V, mask)
        return self.W_o(self.combine_heads(out))
