import torch
from torch import nn

class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        for name in ("W_q", "W_k", "W_v", "W_o"):
            setattr(self, name, nn.Linear(d_model, d_model, bias=False))

    def forward(self, Q, K, V, mask=None):
        cut = lambda x: torch.stack(x.chunk(self.num_heads, dim=-1), dim=1)
        visible = None if mask is None else mask.bool() if mask.dim() == 2 else mask.bool().unsqueeze(1)
        out = nn.functional.scaled_dot_product_attention(
            cut(self.W_q(Q)), cut(self.W_k(K)), cut(self.W_v(V)), attn_mask=visible)
        return self.W_o(torch.cat(out.unbind(1), dim=-1))
