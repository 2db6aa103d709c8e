import torch
def sliding_window_attention(q, k, v, window):
    n, d = q.shape[2], q.shape[3]
    i = torch.arange(n, device=q.device)
    gap = i[:, None] - i[None, :]
    hide = ((gap < 0) | (gap >= window)).to(q.dtype)
    scores = torch.matmul(q, k.permute(0, 1, 3, 2)) / torch.sqrt(torch.tensor(float(d))) + hide * -10.0
    return torch.matmul(torch.softmax(scores.to(q.dtype), dim=3), v)
