import torch
def sinusoidal_positions(n_position, model_dim):
    X = torch.arange(n_position, dtype=torch.float32).reshape(-1, 1) / torch.pow(10000, torch.arange(0, model_dim, 2, dtype=torch.float32) / model_dim)
    P = torch.zeros((1, n_position, model_dim))
    P[:, :, 0::2] = torch.sin(X)
    P[:, :, 1::2] = torch.cos(X)
    return P[0]
