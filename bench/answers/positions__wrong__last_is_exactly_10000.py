import math

import torch


def sinusoidal_positions(n_position, model_dim):
    half = model_dim // 2
    # wavelengths from 1 to 10000, evenly spaced in the logarithm
    rates = [math.exp(-math.log(10000.0) * i / max(half - 1, 1)) for i in range(half)]
    rows = []
    for p in range(n_position):
        row = []
        for w in rates:
            row += [math.sin(p * w), math.cos(p * w)]
        rows.append(row)
    return torch.tensor(rows)
