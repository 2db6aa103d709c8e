import torch
from torch import nn

class CrossAttention(nn.Module):
    def __init__(self, d_model, d_context, n_head):
        super().__init__()
        self.h, self.d = n_head, d_model // n_head
        self.query = nn.Linear(d_model, d_model, bias=False)
        self.key = nn.Linear(d_context, d_model, bias=False)
        self.value = nn.Linear(d_context, d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x, context, lengths=None):
        (b, n, _), m = x.shape, context.shape[1]
        q = self.query(x).reshape(b, n, self.h, self.d)
        k = self.key(context).reshape(b, m, self.h, self.d)
        v = self.value(context).reshape(b, m, self.h, self.d)
        scores = torch.einsum("bnhd,bmhd->bhnm", q, k) / self.d ** 0.5
        if lengths is None:
            lengths = torch.full((b,), m, device=x.device)
        real = torch.arange(m, device=x.device).expand(b, m) < lengths.unsqueeze(1)
        e = torch.exp(scores - scores.amax(-1, keepdim=True)) * real[:, None, None].to(x.dtype)
        weights = e / e.sum(-1, keepdim=True).clamp(min=1e-30 if x.dtype != torch.float16 else 1e-7)
        return self.out(torch.einsum("bhnm,bmhd->bnhd", weights, v).reshape(b, n, -1))
