import math
import torch

def sinusoidal_positions(n_position, model_dim):
    rows = []
    for p in range(n_position):
        row = []
        for c in range(model_dim):
            angle = p / math.pow(10000, 2 * (c // 2) / model_dim)
            row.append(math.sin(angle) if c % 2 == 0 else math.cos(angle))
        rows.append(row)
    return torch.tensor(rows)
