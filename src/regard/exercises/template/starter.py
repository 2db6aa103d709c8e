import torch


def double_it(x):
    """x (batch, position) -> (batch, position)."""
    raise NotImplementedError
