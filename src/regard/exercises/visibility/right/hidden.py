import torch

def causal_visible(n_query, n_key, start=0):
    future = torch.triu(torch.ones((n_query, n_key)), diagonal=start + 1)
    return future == 0

def padding_visible(valid_lens, n_key):
    table = torch.arange(n_key, device=valid_lens.device).expand(valid_lens.numel(), n_key)
    past_end = table.ge(valid_lens.view(-1, 1))
    return ~past_end
