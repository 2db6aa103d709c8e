import torch
from torch import nn, einsum
class CrossAttention(nn.Module):
    def __init__(self, d_model, d_context, n_head):
        super().__init__()
        self.heads = n_head
        self.scale = (d_model // n_head) ** -0.5
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_context, d_model, bias=False)
        self.W_v = nn.Linear(d_context, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)
    def forward(self, x, context, lengths=None):
        b, n, _, h = *x.shape, self.heads
        q, k, v = self.W_q(x), self.W_k(context), self.W_v(context)
        q, k, v = (t.reshape(b, -1, h, t.shape[-1] // h).permute(0, 2, 1, 3) for t in (q, k, v))
        sim = einsum("b h i d, b h j d -> b h i j", q, k) * self.scale
        if lengths is not None:
            mask = torch.arange(context.shape[1], device=x.device)[None, :] < lengths[0]
            sim = sim.masked_fill(~mask[:, None, None, :], -torch.finfo(sim.dtype).max)
        attn = sim.softmax(dim=-1)
        out = einsum("b h i j, b h j d -> b h i d", attn, v)
        return self.W_o(out.permute(0, 2, 1, 3).reshape(b, n, -1))
