import torch
import torch.nn.functional as F
def masked_softmax(X, valid_lens=None):
    b, q, k = X.shape
    if valid_lens is None:
        valid_lens = torch.full((b,), k, device=X.device)
    if valid_lens.ndim == 1:
        valid_lens = valid_lens.repeat(q)
    valid_lens = valid_lens.reshape(-1)
    flat = X.reshape(-1, k).clone()
    flat[torch.arange(k, device=X.device).expand(b * q, k) >= valid_lens[:, None]] = -1e6
    return F.log_softmax(flat, dim=1).exp().reshape(b, q, k)
