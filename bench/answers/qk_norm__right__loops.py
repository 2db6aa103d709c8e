import torch
def qk_norm_attention(q, k, v, q_weight, k_weight, eps=1e-6):
    B, H, n, d = q.shape
    def norm(x, w):
        return w * x / torch.sqrt((x * x).sum(-1, keepdim=True) / d + eps)
    q, k = norm(q, q_weight), norm(k, k_weight)
    rows = []
    for i in range(n):
        s = torch.einsum("bhd,bhjd->bhj", q[:, :, i], k[:, :, : i + 1]) / d**0.5
        rows.append(torch.einsum("bhj,bhjd->bhd", s.softmax(-1), v[:, :, : i + 1]))
    return torch.stack(rows, 2)
