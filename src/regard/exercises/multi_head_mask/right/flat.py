import torch
from torch import nn

class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))

    def forward(self, Q, K, V, mask=None):
        b, n, d = Q.shape
        m, h = K.shape[1], self.num_heads
        q = self.W_q(Q).reshape(b, n, h, d // h).permute(2, 0, 1, 3).reshape(h * b, n, d // h)
        k = self.W_k(K).reshape(b, m, h, d // h).permute(2, 0, 1, 3).reshape(h * b, m, d // h)
        v = self.W_v(V).reshape(b, m, h, d // h).permute(2, 0, 1, 3).reshape(h * b, m, d // h)
        e = torch.bmm(q, k.transpose(1, 2)) * (d // h) ** -0.5
        if mask is None:
            mask = torch.ones(n, m, device=Q.device)
        keep = mask.to(Q.dtype).expand(b, n, m).repeat(h, 1, 1)
        e = torch.exp(e - e.amax(-1, keepdim=True)) * keep
        a = e / e.sum(-1, keepdim=True).clamp(min=1e-6)
        out = torch.bmm(a, v).reshape(h, b, n, d // h).permute(1, 2, 0, 3).reshape(b, n, d)
        return self.W_o(out), a.reshape(h, b, n, m).transpose(0, 1)
