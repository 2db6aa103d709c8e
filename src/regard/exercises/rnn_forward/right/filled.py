import torch

def rnn_step(x_t, h_prev, W_x, W_h, b):
    return torch.tanh(x_t @ W_x + h_prev @ W_h + b)

def rnn_forward(X, h0, W_x, W_h, b):
    H = torch.zeros(len(X), len(h0), dtype=X.dtype, device=X.device)
    h = h0
    for t, x_t in enumerate(X):
        h = rnn_step(x_t, h, W_x, W_h, b)
        H[t] = h
    return H
