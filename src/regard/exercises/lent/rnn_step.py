import torch

def rnn_step(x_t, h_prev, W_x, W_h, b):
    """tanh(x W_x + h W_h + b)."""
    return torch.tanh(torch.matmul(x_t, W_x) + torch.matmul(h_prev, W_h) + b)
