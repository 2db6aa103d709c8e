import torch
def causal_visible(n_query, n_key, start=0):
    return ~torch.ones((n_query, n_key), dtype=torch.bool).triu(start + 1)
def padding_visible(valid_lens, n_key):
    ones = torch.ones(len(valid_lens), n_key, device=valid_lens.device, dtype=torch.long)
    return ones.cumsum(1) <= valid_lens.reshape(-1, 1)
