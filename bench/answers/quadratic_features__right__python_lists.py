import math
import torch
def quadratic_features(x):
    d = x.size(-1)
    feats = [torch.ones(x.shape[:-1], dtype=x.dtype, device=x.device)]
    for i in range(d):
        feats.append(math.sqrt(2) * x[..., i])
        for j in range(d):
            feats.append(x[..., i] * x[..., j])
    return torch.stack(feats, dim=-1)
