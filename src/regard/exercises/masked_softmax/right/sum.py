import torch

def masked_softmax(X, valid_lens=None):
    keep = torch.ones_like(X)
    if valid_lens is not None:
        lens = valid_lens if valid_lens.dim() == 2 else valid_lens.unsqueeze(1)
        keep = (torch.arange(X.size(2), device=X.device) < lens.unsqueeze(2)).to(X.dtype).expand_as(X)
    e = torch.exp(X - X.max(dim=2, keepdim=True).values) * keep
    total = e.sum(dim=2, keepdim=True)
    return e / torch.where(total == 0, torch.ones_like(total), total)
