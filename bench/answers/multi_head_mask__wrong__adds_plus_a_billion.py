import torch
from torch import nn


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads, self.d_k = num_heads, d_model // num_heads
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)
        self.W_o = nn.Linear(d_model, d_model)

    def scaled_dot_product_attention(self, Q, K, V, mask=None):
        logits = Q @ K.mT / self.d_k**0.5
        if mask is not None:
            hidden = 1.0 - mask.to(logits.dtype)
            if hidden.dim() == 3:
                hidden = hidden.unsqueeze(1)
            logits += hidden * 1e9
        return logits.softmax(-1) @ V

    def split_heads(self, x):
        return x.reshape(x.shape[0], x.shape[1], self.num_heads, self.d_k).permute(0, 2, 1, 3)

    def combine_heads(self, x):
        return x.permute(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)

    def forward(self, Q, K, V, mask=None):
        parts = (self.split_heads(W(x)) for W, x in ((self.W_q, Q), (self.W_k, K), (self.W_v, V)))
        return self.W_o(self.combine_heads(self.scaled_dot_product_attention(*parts, mask)))
