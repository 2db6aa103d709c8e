import torch


def rnn_forward(X, h0, W_x, W_h, b):
    H, h = [], h0
    for t in range(X.size(0)):
        h = torch.tanh(X[t - 1] @ W_x + h @ W_h + b)
        H.append(h)
    return torch.stack(H)
