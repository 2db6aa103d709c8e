import torch
from torch import nn
class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(d_model, d_model) for _ in range(4))
    def split_heads(self, x):
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
    def combine_heads(self, x):
        return x.transpose(1, 2).flatten(-2)
    def scaled_dot_product_attention(self, Q, K, V, mask=None):
        s = Q @ K.mT * Q.shape[-1] ** -0.5
        if mask is not None:
            if mask.dim() == 3:
                mask = mask[:, None]
            s = s * mask
        return s.softmax(-1) @ V
    def forward(self, Q, K, V, mask=None):
        return self.W_o(self.combine_heads(self.scaled_dot_product_attention(*map(self.split_heads, (self.W_q(Q), self.W_k(K), self.W_v(V))), mask)))
