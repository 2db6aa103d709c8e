import torch
def masked_softmax(X, valid_lens=None):
    if valid_lens is None:
        mask = torch.ones_like(X)
    else:
        if valid_lens.dim() == 1:
            valid_lens = valid_lens.view(-1, 1).expand(X.shape[:2])
        mask = (torch.arange(X.shape[2], device=X.device) < valid_lens.unsqueeze(-1)).to(X.dtype)
    top = (X + (mask - 1) * 1e4).max(dim=-1, keepdim=True).values
    e = torch.exp((X - top) * mask) * mask
    return e / (e.sum(-1, keepdim=True) + (mask.sum(-1, keepdim=True) == 0))
