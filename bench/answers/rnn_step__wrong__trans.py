import torch
def rnn_step(x_t, h_prev, W_x, W_h, b):
    return torch.tanh(torch.addmv(torch.addmv(b, W_x.t(), x_t), W_h, h_prev))
