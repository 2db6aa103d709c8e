import torch
def sinusoidal_positions(n_position, model_dim):
    i = torch.arange(model_dim // 2)
    angles = torch.outer(torch.arange(n_position).double(), 10000.0 ** (-2.0 * i / model_dim).double())
    return torch.cat([angles.sin(), angles.cos()], dim=-1).float()
