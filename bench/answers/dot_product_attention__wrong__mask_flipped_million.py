import math

import torch
from torch import nn


def hide(e: torch.Tensor, lens: torch.Tensor) -> torch.Tensor:
    """Put a very negative number wherever the position is inside the length."""
    lens = lens[:, None].expand(-1, e.shape[1]) if lens.ndim == 1 else lens
    position = torch.arange(e.shape[2], device=e.device)
    return torch.where(position[None, None, :] < lens[:, :, None], torch.full_like(e, -1e6), e)


class DotProductAttention(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.drop = nn.Dropout(dropout)

    def forward(self, queries, keys, values, valid_lens=None):
        e = queries.matmul(keys.mT).div(math.sqrt(keys.shape[2]))
        if valid_lens is not None:
            e = hide(e, valid_lens)
        w = e.softmax(2)
        return self.drop(w).matmul(values), w
