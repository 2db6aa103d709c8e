import torch
def sinusoidal_positions(n_position, model_dim):
    j = torch.arange(model_dim, dtype=torch.float64)
    angle = torch.arange(n_position, dtype=torch.float64)[:, None] / 10000 ** (2 * (j // 2) / model_dim)
    return torch.sin(angle + (j % 2) * torch.pi / 2).to(torch.float32)
