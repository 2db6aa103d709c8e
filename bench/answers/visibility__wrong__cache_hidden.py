import torch


def causal_visible(n_query, n_key, start=0):
    table = torch.zeros(n_query, n_key, dtype=torch.bool)
    for i in range(n_query):
        for j in range(n_key):
            table[i, j] = start <= j <= start + i
    return table


def padding_visible(valid_lens, n_key):
    batch = valid_lens.shape[0]
    keys = torch.arange(n_key, device=valid_lens.device).expand(batch, n_key)
    return keys.lt(valid_lens.unsqueeze(-1))
