import torch


def sinusoidal_positions(n_position, model_dim):
    """The table (n_position, model_dim) of sines and cosines; model_dim is even."""
    raise NotImplementedError
