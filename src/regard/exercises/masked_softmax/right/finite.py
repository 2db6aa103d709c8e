import torch
from torch import nn

def masked_softmax(X, valid_lens=None):
    if valid_lens is None:
        return nn.functional.softmax(X, dim=-1)
    shape = X.shape
    if valid_lens.dim() == 1:
        valid_lens = valid_lens.repeat_interleave(shape[1])
    else:
        valid_lens = valid_lens.flatten()
    X = X.reshape(-1, shape[-1]).clone()
    mask = torch.arange(shape[-1], dtype=torch.float32, device=X.device)[None] < valid_lens[:, None]
    X[~mask] = -1e6
    return nn.functional.softmax(X.view(shape), dim=-1)
