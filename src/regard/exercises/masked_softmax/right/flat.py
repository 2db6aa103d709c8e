import torch

def masked_softmax(X, valid_lens=None):
    if valid_lens is None:
        return torch.softmax(X, dim=-1)
    if valid_lens.dim() == 1:
        lens = torch.repeat_interleave(valid_lens, X.shape[1])
    else:
        lens = valid_lens.reshape(-1)
    rows = X.reshape(-1, X.shape[-1])
    hidden = torch.arange(rows.shape[1], device=X.device)[None, :] >= lens[:, None]
    weights = torch.softmax(rows.masked_fill(hidden, float("-inf")), dim=-1)
    return weights.masked_fill(hidden, 0.0).reshape(X.shape)
