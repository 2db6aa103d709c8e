import torch
def masked_softmax(X, valid_lens=None):
    if valid_lens is None:
        return torch.exp(X - torch.logsumexp(X, dim=-1, keepdim=True))
    lens = valid_lens[:, None] if valid_lens.dim() == 1 else valid_lens
    mask = torch.arange(X.shape[-1], device=X.device) < lens[..., None]
    e = torch.exp(X - X.max()) * mask
    out = e / e.sum(-1, keepdim=True)
    return torch.nan_to_num(out, nan=0.0)
