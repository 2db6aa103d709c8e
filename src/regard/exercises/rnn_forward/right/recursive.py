import torch

def rnn_forward(X, h0, W_x, W_h, b):
    h = torch.tanh(torch.einsum("d,dn->n", X[0], W_x) + torch.einsum("m,mn->n", h0, W_h) + b)
    if X.shape[0] == 1:
        return h[None, :]
    return torch.vstack([h[None, :], rnn_forward(X[1:], h, W_x, W_h, b)])
