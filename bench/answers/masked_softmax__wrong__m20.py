import torch
def masked_softmax(X, valid_lens=None):
    if valid_lens is not None:
        if valid_lens.dim() == 1:
            valid_lens = valid_lens.unsqueeze(1)
        pos = torch.arange(X.size(2), device=X.device).view(1, 1, -1)
        X = torch.where(pos < valid_lens.unsqueeze(2), X, torch.tensor(-20.0, dtype=X.dtype))
    return (X - X.logsumexp(-1, True)).exp()
