import torch
def rnn_forward(X, h0, W_x, W_h, b):
    H = torch.empty(X.shape[0], h0.shape[0], dtype=X.dtype, device=X.device)
    prev = h0
    for t in range(len(X)):
        prev = torch.tanh(torch.matmul(X[t], W_x) + torch.matmul(h0, W_h) + b)
        H[t] = prev
    return H
