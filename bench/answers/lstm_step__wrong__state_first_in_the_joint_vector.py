import torch


def lstm_step(x_t, h_prev, c_prev, W_f, U_f, b_f, W_i, U_i, b_i, W_o, U_o, b_o, W_c, U_c, b_c):
    hx = torch.hstack([h_prev, x_t])
    f = torch.sigmoid(hx @ torch.vstack([W_f, U_f]) + b_f)
    i = torch.sigmoid(hx @ torch.vstack([W_i, U_i]) + b_i)
    o = torch.sigmoid(hx @ torch.vstack([W_o, U_o]) + b_o)
    c = f * c_prev + i * torch.tanh(hx @ torch.vstack([W_c, U_c]) + b_c)
    return o * torch.tanh(c), c
