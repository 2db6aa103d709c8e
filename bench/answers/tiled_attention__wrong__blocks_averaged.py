import torch


def tiled_attention(q, k, v, block, causal=False):
    n, d = q.shape[-2:]
    outs, count = torch.zeros_like(q), torch.zeros(n, 1, dtype=q.dtype, device=q.device)
    i = torch.arange(n, device=q.device)[:, None]
    for s0 in range(0, n, block):
        j = torch.arange(s0, min(s0 + block, n), device=q.device)
        s = q @ k[..., s0 : s0 + block, :].transpose(-1, -2) / d**0.5
        if causal:
            s = s.masked_fill(j > i, float("-inf"))
        outs = outs + s.softmax(-1).nan_to_num() @ v[..., s0 : s0 + block, :]
        count = count + ((j <= i).any(-1, keepdim=True) if causal else 1)
    return outs / count
