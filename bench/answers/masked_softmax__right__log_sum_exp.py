from typing import Optional

import torch


def _allowed(shape, lens, device):
    columns = torch.arange(shape[2], device=device).expand(*shape)
    if lens.ndim == 1:
        lens = lens[:, None]
    return columns.lt(lens[:, :, None])


def masked_softmax(X: torch.Tensor, valid_lens: Optional[torch.Tensor] = None) -> torch.Tensor:
    # softmax(x) = exp(x - log sum exp x), where the sum runs over the visible keys only
    if valid_lens is None:
        return torch.exp(X - torch.logsumexp(X, dim=2, keepdim=True))
    ok = _allowed(X.shape, valid_lens, X.device)
    something = ok.any(dim=2, keepdim=True)
    visible = torch.where(ok | ~something, X, torch.full_like(X, -float("inf")))
    log_p = visible - torch.logsumexp(visible, dim=2, keepdim=True)
    return torch.where(ok, log_p.exp(), torch.zeros_like(X))
