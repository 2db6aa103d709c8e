import torch

def rnn_step(x_t, h_prev, W_x, W_h, b):
    from_input = x_t @ W_x
    from_state = h_prev @ W_h
    total = from_input + from_state + b
    return torch.tanh(total)
