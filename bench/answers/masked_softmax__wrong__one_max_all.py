import torch
def masked_softmax(X, valid_lens=None):
    e = torch.exp(X - X.max())
    if valid_lens is not None:
        lens = valid_lens[:, None] if valid_lens.dim() == 1 else valid_lens
        e = e * (torch.arange(X.shape[-1], device=X.device) < lens[..., None])
    return e / e.sum(-1, keepdim=True)
