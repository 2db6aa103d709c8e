import numpy as np
import torch

def quadratic_features(x):
    rows = []
    for v in x.reshape(-1, x.shape[-1]):
        d = v.shape[0]
        root = float(np.sqrt(2))
        pairs = torch.stack([v[i] * v[j] * (1.0 if i == j else root) for i in range(d) for j in range(i + 1)])
        rows.append(torch.cat([pairs, v * 1.4142135623730951, v.new_tensor([1.0])]))
    return torch.stack(rows).reshape(*x.shape[:-1], -1)
