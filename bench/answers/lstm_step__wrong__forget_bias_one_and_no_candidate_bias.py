import torch


def lstm_step(x_t, h_prev, c_prev, W_f, U_f, b_f, W_i, U_i, b_i, W_o, U_o, b_o, W_c, U_c, b_c, forget_bias=1.0):
    z = torch.cat([x_t, h_prev])
    f = torch.sigmoid(z @ torch.vstack([W_f, U_f]) + b_f + forget_bias)
    i = torch.sigmoid(z @ torch.vstack([W_i, U_i]) + b_i)
    o = torch.sigmoid(z @ torch.vstack([W_o, U_o]) + b_o)
    new = torch.tanh(z @ torch.vstack([W_c, U_c]))
    c = f * c_prev + i * new
    return o * torch.tanh(c), c
