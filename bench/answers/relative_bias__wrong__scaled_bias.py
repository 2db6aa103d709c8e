import torch
def relative_bias_attention(q, k, v, table):
    n, d = q.shape[2], q.shape[3]
    r = (table.shape[-1] - 1) // 2
    i = torch.arange(n, device=q.device)
    clipped = torch.clip(i.view(1, -1) - i.view(-1, 1), -r, r) + r
    hot = torch.nn.functional.one_hot(clipped, 2 * r + 1).to(table.dtype)
    scores = (torch.einsum("bhid,bhjd->bhij", q, k) + torch.einsum("hc,ijc->hij", table, hot)) * d**-0.5
    w = (scores - scores.logsumexp(-1, keepdim=True)).exp()
    return torch.einsum("bhij,bhjd->bhid", w, v)
