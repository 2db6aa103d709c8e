import torch
from torch import nn
from torch.nn import functional as F

class CrossAttention(nn.Module):
    def __init__(self, d_model, d_context, n_head):
        super().__init__()
        self.n_head = n_head
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_context, d_model, bias=False)
        self.W_v = nn.Linear(d_context, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x, context, lengths=None):
        q, k, v = (t.unflatten(-1, (self.n_head, -1)).transpose(1, 2)
                   for t in (self.W_q(context), self.W_k(context), self.W_v(context)))
        visible = None
        if lengths is not None:
            visible = (torch.arange(k.shape[2], device=x.device) < lengths[:, None])[:, None, None]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
        return self.W_o(out.transpose(1, 2).flatten(2))
