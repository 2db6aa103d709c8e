import torch

def causal_visible(n_query, n_key, start=0):
    return torch.tril(torch.ones(n_query, n_key, dtype=torch.bool), diagonal=start)

def padding_visible(valid_lens, n_key):
    ones = torch.ones(valid_lens.shape[0], n_key, dtype=torch.long, device=valid_lens.device)
    return ones.cumsum(dim=1) <= valid_lens.unsqueeze(1)
