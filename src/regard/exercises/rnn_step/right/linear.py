import torch.nn.functional as F

def rnn_step(x_t, h_prev, W_x, W_h, b):
    return F.tanh(F.linear(x_t, W_x.t(), b) + F.linear(h_prev, W_h.t()))
