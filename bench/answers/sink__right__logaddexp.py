import torch
def sink_attention(q, k, v, sink):
    n, d = q.shape[-2:]
    s = torch.einsum("bhid,bhjd->bhij", q, k) * d**-0.5
    i = torch.arange(n, device=q.device)
    s = torch.where(i[:, None] >= i, s, torch.tensor(-torch.inf, dtype=s.dtype, device=s.device))
    lse = torch.logaddexp(torch.logsumexp(s, -1), sink[None, :, None])
    return torch.exp(s - lse[..., None]) @ v
