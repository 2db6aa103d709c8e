import torch


def rnn_forward(X, h0, W_x, W_h, b):
    H = []
    h = h0
    for x in reversed(X):
        h = (x @ W_x + h @ W_h + b).tanh()
        H.insert(0, h)
    return torch.stack(H)
