import torch

def sinusoidal_positions(n_position, model_dim):
    position = torch.arange(n_position, dtype=torch.float32).unsqueeze(1)
    exponent = torch.arange(0, model_dim, 2, dtype=torch.float32) / model_dim
    rate = 1.0 / 10000.0 ** exponent
    angle = position * rate
    P = torch.zeros(n_position, model_dim)
    P[:, 0::2] = torch.sin(angle)
    P[:, 1::2] = torch.cos(angle)
    return P
