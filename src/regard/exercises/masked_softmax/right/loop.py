import torch

def masked_softmax(X, valid_lens=None):
    out = torch.zeros_like(X)
    for b in range(X.shape[0]):
        for i in range(X.shape[1]):
            n = X.shape[2]
            if valid_lens is not None:
                n = int(valid_lens[b] if valid_lens.dim() == 1 else valid_lens[b, i])
            if n > 0:
                out[b, i, :n] = torch.softmax(X[b, i, :n], -1)
    return out
