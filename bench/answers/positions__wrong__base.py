import math
import torch
def sinusoidal_positions(n_position, model_dim):
    pe = torch.zeros(n_position, model_dim)
    position = torch.arange(0, n_position).unsqueeze(1)
    div_term = torch.exp(torch.arange(0, model_dim, 2) * -(math.log(1000.0) / model_dim))
    pe[:, 0::2] = torch.sin(position * div_term)
    pe[:, 1::2] = torch.cos(position * div_term)
    return pe
