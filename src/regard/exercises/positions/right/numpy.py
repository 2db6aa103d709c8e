import numpy as np

def sinusoidal_positions(n_position, model_dim):
    pair = np.arange(model_dim) // 2
    angles = np.arange(n_position)[:, None] / np.power(10000, 2 * pair / model_dim)[None]
    angles[:, 0::2] = np.sin(angles[:, 0::2])
    angles[:, 1::2] = np.cos(angles[:, 1::2])
    return angles
