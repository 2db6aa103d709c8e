import math

import torch
from torch import nn


class CrossAttention(nn.Module):
    def __init__(self, d_model, d_context, n_head):
        super().__init__()
        self.d_model = d_model
        self.n_head = n_head
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_context, d_model, bias=False)
        self.W_v = nn.Linear(d_context, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)

    def split(self, t):
        return torch.stack(t.chunk(self.n_head, dim=-1), dim=1)

    def forward(self, x, context, lengths=None):
        if lengths is not None:
            m = context.size(1)
            real = torch.arange(m, device=context.device).expand(len(lengths), m) < lengths.unsqueeze(-1)
            context = context * real.unsqueeze(-1).to(context.dtype)
        q = self.split(self.W_q(x))
        k = self.split(self.W_k(context))
        v = self.split(self.W_v(context))
        weights = torch.softmax(torch.matmul(q, k.mT) / math.sqrt(self.d_model), dim=-1)
        heads = torch.matmul(weights, v)
        return self.W_o(torch.cat(heads.unbind(1), dim=-1))
