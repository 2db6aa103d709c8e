import torch

def tiled_attention(q, k, v, block, causal=False):
    out = lse = None
    rows = torch.arange(q.shape[2], device=q.device).unsqueeze(1)
    for first, (keys, values) in enumerate(zip(k.split(block, 2), v.split(block, 2))):
        scores = torch.einsum("bhid,bhjd->bhij", q, keys) / q.shape[-1] ** 0.5
        if causal:
            columns = first * block + torch.arange(keys.shape[2], device=q.device)
            scores = torch.where(columns <= rows, scores, torch.finfo(q.dtype).min / 2)
        new_lse, new = scores.logsumexp(-1, keepdim=True), scores.softmax(-1) @ values
        if out is None:
            out, lse = new, new_lse
        else:
            share = torch.sigmoid(new_lse - lse)
            out, lse = out + share * (new - out), torch.logaddexp(lse, new_lse)
    return out
