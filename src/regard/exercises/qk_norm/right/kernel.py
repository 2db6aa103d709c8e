import torch
from torch.nn import functional as F

def qk_norm_attention(q, k, v, q_weight, k_weight, eps=1e-6):
    q, k = F.rms_norm(q, q.shape[-1:], q_weight, eps), F.rms_norm(k, k.shape[-1:], k_weight, eps)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)
