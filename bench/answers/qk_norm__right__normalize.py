import torch
import torch.nn.functional as F
def qk_norm_attention(q, k, v, q_weight, k_weight, eps=1e-6):
    d = q.shape[-1]
    length = lambda x: torch.sqrt(x.square().sum(-1, keepdim=True) + d * eps)
    qn, kn = q / length(q) * q_weight, k / length(k) * k_weight
    # sqrt(d) * sqrt(d) / sqrt(d)
    s = (qn @ kn.mT) * d**0.5
    i = torch.arange(q.shape[2], device=q.device)
    s = s.masked_fill(i > i[:, None], -1e9)
    return torch.einsum("bhij,bhjd->bhid", s.softmax(-1), v)
