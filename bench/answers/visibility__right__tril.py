import torch
def causal_visible(n_query, n_key, start=0):
    return torch.tril(torch.ones(n_query, n_key), diagonal=start).bool()
def padding_visible(valid_lens, n_key):
    return torch.arange(n_key, device=valid_lens.device).repeat(valid_lens.shape[0], 1).lt(valid_lens.unsqueeze(-1))
