import torch
def rnn_step(x_t, h_prev, W_x, W_h, b):
    out = []
    for j in range(b.shape[0]):
        s = b[j]
        for i in range(x_t.shape[0]):
            s = s + x_t[i] * W_x[i, j]
        for i in range(h_prev.shape[0]):
            s = s + h_prev[i] * W_h[i, j]
        out.append(torch.tanh(s))
    return torch.stack(out)
