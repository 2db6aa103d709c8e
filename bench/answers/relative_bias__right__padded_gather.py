import torch
def relative_bias_attention(q, k, v, table):
    b, h, n, d = q.shape
    r = (table.shape[1] - 1) // 2
    dist = torch.arange(1 - n, n, device=q.device).clamp(min=-r, max=r) + r
    line = table[:, dist]
    bias = torch.stack([line[:, n - 1 - i : 2 * n - 1 - i] for i in range(n)], 1)
    out = []
    for head in range(h):
        s = torch.bmm(q[:, head], k[:, head].mT) / d**0.5 + bias[head]
        out.append(torch.bmm(s.softmax(2), v[:, head]))
    return torch.stack(out, 1)
