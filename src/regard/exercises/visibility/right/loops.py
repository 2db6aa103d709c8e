import torch

def causal_visible(n_query, n_key, start=0):
    rows = []
    for i in range(n_query):
        rows.append([j <= start + i for j in range(n_key)])
    return torch.tensor(rows)

def padding_visible(valid_lens, n_key):
    visible = torch.zeros(len(valid_lens), n_key, dtype=torch.bool, device=valid_lens.device)
    for row, n in zip(visible, valid_lens):
        row[:n] = True
    return visible
