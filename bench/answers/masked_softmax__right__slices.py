import torch
def masked_softmax(X, valid_lens=None):
    if valid_lens is None:
        return X.softmax(-1)
    rows = []
    for b in range(X.shape[0]):
        for i in range(X.shape[1]):
            n = int(valid_lens[b, i]) if valid_lens.dim() == 2 else int(valid_lens[b])
            rows.append(torch.nn.functional.pad(X[b, i, :n].softmax(0), (0, X.shape[2] - n)))
    return torch.stack(rows).reshape(X.shape)
