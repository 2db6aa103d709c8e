import torch

def double_it(x):
    factor = 2
    return factor * x
