import math
import torch

def sinusoidal_positions(n_position, model_dim):
    position = torch.arange(0, n_position).unsqueeze(1)
    div_term = torch.exp(torch.arange(0, model_dim, 2) * -(math.log(10000.0) / model_dim))
    both = torch.stack([torch.sin(position * div_term), torch.cos(position * div_term)], dim=2)
    return both.reshape(n_position, model_dim)
