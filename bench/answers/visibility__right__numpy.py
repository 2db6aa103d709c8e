import numpy as np
import torch
def causal_visible(n_query, n_key, start=0):
    return torch.from_numpy(np.arange(n_key)[None, :] <= start + np.arange(n_query)[:, None])
def padding_visible(valid_lens, n_key):
    return torch.ge(valid_lens[:, None] - 1, torch.arange(n_key, device=valid_lens.device)[None, :])
