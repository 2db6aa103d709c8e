import torch

def double_it(x):
    return x + x
