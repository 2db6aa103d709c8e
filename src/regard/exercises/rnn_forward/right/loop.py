import torch

def rnn_forward(X, h0, W_x, W_h, b):
    T = X.shape[0]
    states = []
    h = h0
    for t in range(T):
        x = X[t]
        before = torch.matmul(x, W_x) + torch.matmul(h, W_h) + b
        h = torch.tanh(before)
        states.append(h)
    return torch.stack(states, dim=0)
