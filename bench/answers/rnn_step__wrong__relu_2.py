import torch
def rnn_step(x_t, h_prev, W_x, W_h, b):
    a = (x_t[:, None] * W_x).sum(0) + (h_prev.unsqueeze(1) * W_h).sum(0)
    return torch.add(a, b).relu()
