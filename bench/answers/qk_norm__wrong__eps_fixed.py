import torch
import torch.nn.functional as F
def qk_norm_attention(q, k, v, q_weight, k_weight, eps=1e-6):
    d = q.size(-1)
    q = F.rms_norm(q, (d,), q_weight, 1e-5)
    k = F.rms_norm(k, (d,), k_weight, 1e-5)
    n = q.size(-2)
    bias = torch.zeros(n, n, dtype=q.dtype, device=q.device).masked_fill(torch.ones(n, n, device=q.device).triu(1).bool(), float("-inf"))
    att = torch.matmul(q, k.transpose(-2, -1)) * d ** -0.5 + bias
    return F.softmax(att, dim=-1) @ v
