import torch
def quadratic_features(x):
    one = torch.ones_like(x[..., :1])
    y = torch.cat([one, x], dim=-1)
    return (y.unsqueeze(-1) * y.unsqueeze(-2)).flatten(-2)
