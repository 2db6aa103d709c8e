import torch
def rnn_step(x_t, h_prev, W_x, W_h, b):
    return torch.tanh(torch.addmv((W_x.t() @ x_t), W_h.t(), h_prev))
