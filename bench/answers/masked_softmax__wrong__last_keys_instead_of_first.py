import torch


def masked_softmax(X, valid_lens=None):
    b, q, k = X.shape
    if valid_lens is None:
        valid_lens = torch.full((b,), k, device=X.device)
    if valid_lens.dim() == 1:
        valid_lens = valid_lens[:, None].expand(b, q)
    position = torch.arange(k, device=X.device).view(1, 1, k)
    visible = position >= k - valid_lens.unsqueeze(-1)
    scores = X.masked_fill(~visible, torch.finfo(X.dtype).min)
    return torch.softmax(scores, dim=-1) * visible
