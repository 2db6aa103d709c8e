import torch

def sliding_window_attention(q, k, v, window):
    out = []
    for i in range(q.shape[2]):
        first = max(0, i - window + 1)
        scores = (q[:, :, i : i + 1] * k[:, :, first : i + 1]).sum(-1) * q.shape[-1] ** -0.5
        out.append((scores.softmax(-1).unsqueeze(-1) * v[:, :, first : i + 1]).sum(2))
    return torch.stack(out, dim=2)
