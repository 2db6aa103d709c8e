import math
import torch

def quadratic_features(x):
    columns = [torch.ones_like(x[..., 0])]
    for i in range(x.shape[-1]):
        columns.append(math.sqrt(2) * x[..., i])
        for j in range(x.shape[-1]):
            columns.append(x[..., i] * x[..., j])
    return torch.stack(columns, -1)
