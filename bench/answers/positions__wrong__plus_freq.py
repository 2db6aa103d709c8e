import math
import torch
def sinusoidal_positions(n_position, model_dim):
    P = torch.zeros(n_position, model_dim)
    for p in range(n_position):
        for i in range(model_dim // 2):
            angle = p / 10000 ** (2 * i / model_dim)
            P[p, 2 * i] = math.sin(angle)
            P[p, 2 * i + 1] = math.cos(p / 10000 ** ((2 * i + 1) / model_dim))
    return P
