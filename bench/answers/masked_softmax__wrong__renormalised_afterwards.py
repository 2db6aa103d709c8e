import torch


def masked_softmax(X, valid_lens=None):
    p = torch.softmax(X, dim=-1)
    if valid_lens is None:
        return p
    lens = valid_lens[:, None] if valid_lens.ndim == 1 else valid_lens
    inside = torch.arange(X.shape[-1], device=X.device) < lens[..., None]
    p = p * inside
    return p / (p.sum(dim=-1, keepdim=True) + 1e-9)
