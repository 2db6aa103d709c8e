import torch


def rnn_forward(X, h0, W_x, W_h, b):
    steps = X.shape[0]
    H = [torch.zeros_like(h0)] * steps
    for t in range(steps):
        before = H[t - 1]  # for t = 0 this is the start
        H[t] = torch.tanh(torch.einsum("i,ij->j", X[t], W_x) + torch.einsum("i,ij->j", before, W_h) + b)
    return torch.stack(H)
