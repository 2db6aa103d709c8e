import torch

def sinusoidal_positions(n_position, model_dim):
    half = torch.arange(model_dim // 2)
    angle = torch.outer(torch.arange(n_position).float(), 10000 ** (-2 * half / model_dim))
    return torch.cat([angle.sin(), angle.cos()], dim=-1)
