import torch


def lstm_step(x_t, h_prev, c_prev, W_f, U_f, b_f, W_i, U_i, b_i, W_o, U_o, b_o, W_c, U_c, b_c):
    f = torch.sigmoid(x_t @ W_f + c_prev @ U_f + b_f)
    i = torch.sigmoid(x_t @ W_i + c_prev @ U_i + b_i)
    o = torch.sigmoid(x_t @ W_o + c_prev @ U_o + b_o)
    c = f * c_prev + i * torch.tanh(x_t @ W_c + h_prev @ U_c + b_c)
    return o * c.tanh(), c
