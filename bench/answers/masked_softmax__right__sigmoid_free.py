import torch
def masked_softmax(X, valid_lens=None):
    Y = X
    if valid_lens is not None:
        n = X.shape[-1]
        if valid_lens.dim() < 2:
            valid_lens = valid_lens[:, None].repeat(1, X.shape[1])
        table = torch.full((n + 1, n), float("-inf"), dtype=X.dtype, device=X.device)
        table = table.triu(0)
        table = torch.where(torch.isnan(table), torch.zeros_like(table), table)
        Y = X + table[valid_lens.long()]
    return torch.softmax(Y, dim=2)
