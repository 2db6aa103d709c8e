import torch
import torch.nn.functional as F
def sliding_window_attention(q, k, v, window):
    b, h, n, d = q.shape
    w = min(window, n)
    kp = F.pad(k, (0, 0, w - 1, 0)).unfold(2, w, 1)
    vp = F.pad(v, (0, 0, w - 1, 0)).unfold(2, w, 1)
    s = torch.einsum("bhnd,bhndw->bhnw", q, kp) / d**0.5
    real = torch.arange(n, device=q.device)[:, None] + torch.arange(w, device=q.device) >= w - 1
    s = s.masked_fill(~real, float("-inf"))
    return torch.einsum("bhnw,bhndw->bhnd", s.softmax(-1), vp)
