import torch
from torch import nn


class CrossAttention(nn.Module):
    def __init__(self, d_model, d_context, n_head):
        super().__init__()
        self.n_head = n_head
        self.scale = d_context**-0.5
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_context, d_model, bias=False)
        self.W_v = nn.Linear(d_context, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x, context, lengths=None):
        B, N, D = x.shape
        M = context.size(1)
        q = self.W_q(x).view(B, N, self.n_head, -1).transpose(1, 2)
        k = self.W_k(context).view(B, M, self.n_head, -1).transpose(1, 2)
        v = self.W_v(context).view(B, M, self.n_head, -1).transpose(1, 2)
        s = (q * self.scale) @ k.mT
        if lengths is not None:
            s = s.masked_fill((torch.arange(M, device=x.device) >= lengths[:, None])[:, None, None], -torch.inf)
        a = s.softmax(-1)
        return self.W_o((a @ v).transpose(1, 2).flatten(2))
