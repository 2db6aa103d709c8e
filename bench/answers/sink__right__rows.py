import torch
def sink_attention(q, k, v, sink):
    outs = []
    for h in range(q.shape[1]):
        rows = []
        for i in range(q.shape[2]):
            s = (k[:, h, : i + 1] @ q[:, h, i, :, None])[..., 0] / q.shape[-1] ** 0.5
            m = torch.maximum(s.amax(-1), sink[h])[:, None]
            e = torch.exp(s - m)
            w = e / (e.sum(-1, keepdim=True) + torch.exp(sink[h] - m))
            rows.append((w[:, None] @ v[:, h, : i + 1])[:, 0])
        outs.append(torch.stack(rows, 1))
    return torch.stack(outs, 1)
