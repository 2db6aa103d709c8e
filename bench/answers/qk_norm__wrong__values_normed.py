import torch
import torch.nn.functional as F


def qk_norm_attention(q, k, v, q_weight, k_weight, eps=1e-6):
    def norm(t):
        return t * (t.pow(2).mean(-1, keepdim=True) + eps).rsqrt()

    q, k, v = norm(q) * q_weight, norm(k) * k_weight, norm(v)
    n = q.shape[-2]
    bias = torch.zeros(n, n, dtype=q.dtype, device=q.device).masked_fill(torch.ones(n, n, device=q.device).triu(1).bool(), -1e9)
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5 + bias, -1) @ v
