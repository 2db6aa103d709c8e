import torch


def masked_softmax(X, valid_lens=None):
    if valid_lens is None:
        return torch.softmax(X, -1)
    lens = valid_lens[:, None, None] if valid_lens.dim() == 1 else valid_lens[..., None]
    hidden = (torch.arange(X.shape[-1], device=X.device) >= lens).to(X.dtype)
    w = torch.softmax(X - 10.0 * hidden, -1)
    return w * (lens > 0)
