import torch


def rnn_forward(X, h0, W_x, W_h, b):
    """X (T, inputs), h0 (hidden,) -> H (T, hidden), the state after each input."""
    T = X.shape[0]
    inputs = X @ W_x + b
    outs = []
    h = h0
    for t in range(T):
        a = inputs[t] + h @ W_h
        outs.append(a)
        h = a.tanh()
    return torch.stack(outs, dim=0)
