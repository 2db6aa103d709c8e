import math
import torch

def qk_norm_attention(q, k, v, q_weight, k_weight, eps=1e-6):
    def norm(x, weight):
        wide = x if x.dtype == torch.float64 else x.float()
        wide = wide / torch.sqrt((wide * wide).mean(dim=-1, keepdim=True) + eps)
        return wide.to(x.dtype) * weight

    scores = torch.einsum("bhid,bhjd->bhij", norm(q, q_weight), k) / math.sqrt(q.shape[-1])
    n = q.shape[2]
    visible = torch.tril(torch.ones(n, n, dtype=torch.bool, device=q.device))
    weights = torch.softmax(torch.where(visible, scores, float("-inf")), dim=-1)
    return torch.einsum("bhij,bhjd->bhid", weights, v)
