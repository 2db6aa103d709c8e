import torch


def rms(x, eps):
    return torch.sqrt(torch.mean(x * x, dim=-1, keepdim=True) + eps)


def qk_norm_attention(q, k, v, q_weight, k_weight, eps=1e-6):
    q = q * q_weight
    k = k * k_weight
    q, k = q / rms(q, eps), k / rms(k, eps)
    n, d = q.shape[-2:]
    scores = torch.matmul(q, k.transpose(2, 3)) * d ** -0.5
    scores = scores + torch.triu(torch.full((n, n), float("-inf"), device=q.device, dtype=q.dtype), 1)
    return torch.matmul(torch.softmax(scores, dim=-1), v)
