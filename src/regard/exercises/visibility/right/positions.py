import torch

def causal_visible(n_query, n_key, start=0):
    query_pos = torch.arange(n_query)[:, None] + start
    key_pos = torch.arange(n_key)[None, :]
    return key_pos <= query_pos

def padding_visible(valid_lens, n_key):
    positions = torch.arange(n_key, device=valid_lens.device)[None, :]
    lens = valid_lens[:, None]
    return positions < lens
