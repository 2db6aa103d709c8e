import torch
def _norm(x, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
def qk_norm_attention(q, k, v, q_weight, k_weight, eps=1e-6):
    xq = _norm(q.float() if q.dtype in (torch.float16, torch.bfloat16) else q, eps).type_as(q) * q_weight
    xk = _norm(k.float() if k.dtype in (torch.float16, torch.bfloat16) else k, eps).type_as(k) * k_weight
    seqlen = q.shape[2]
    mask = torch.triu(torch.full((seqlen, seqlen), float("-inf"), device=q.device), diagonal=1)
    scores = xq @ xk.transpose(2, 3) / (q.shape[-1] ** 0.5) + mask
    return torch.softmax(scores.float(), -1).type_as(v) @ v if v.dtype != torch.float64 else torch.softmax(scores, -1) @ v
