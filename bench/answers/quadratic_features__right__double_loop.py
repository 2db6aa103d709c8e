import torch


def quadratic_features(x):
    d = x.size(-1)
    root = 2.0**0.5
    columns = [torch.ones_like(x[..., 0])]
    for i in range(d):
        columns.append(root * x[..., i])
        columns.append(x[..., i] ** 2)
        for j in range(i):
            columns.append(root * x[..., i] * x[..., j])
    return torch.stack(columns, dim=-1)
