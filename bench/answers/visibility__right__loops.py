import torch
def causal_visible(n_query, n_key, start=0):
    return torch.tensor([[j <= start + i for j in range(n_key)] for i in range(n_query)], dtype=torch.bool).reshape(n_query, n_key)
def padding_visible(valid_lens, n_key):
    out = torch.zeros(len(valid_lens), n_key, dtype=torch.bool, device=valid_lens.device)
    for b in range(len(valid_lens)):
        out[b, : int(valid_lens[b])] = True
    return out
