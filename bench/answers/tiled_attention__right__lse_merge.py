import torch
def tiled_attention(q, k, v, block, causal=False):
    n, d = q.shape[-2:]
    out = lse = None
    for start in range(0, n, block):
        stop = min(start + block, n)
        s = q @ k[..., start:stop, :].transpose(-1, -2) / d**0.5
        if causal:
            hidden = torch.arange(start, stop, device=q.device) > torch.arange(n, device=q.device).unsqueeze(1)
            s = s.masked_fill(hidden, -1e30)
        part_lse = torch.logsumexp(s, -1, keepdim=True)
        part = torch.exp(s - part_lse) @ v[..., start:stop, :]
        if out is None:
            out, lse = part, part_lse
        else:
            both = torch.logaddexp(lse, part_lse)
            out = torch.exp(lse - both) * out + torch.exp(part_lse - both) * part
            lse = both
    return out
