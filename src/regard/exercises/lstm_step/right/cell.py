import torch

def lstm_step(x_t, h_prev, c_prev, W_f, U_f, b_f, W_i, U_i, b_i, W_o, U_o, b_o, W_c, U_c, b_c):
    w_ih = torch.stack([W_i.t(), W_f.t(), W_c.t(), W_o.t()]).flatten(0, 1)
    w_hh = torch.stack([U_i.t(), U_f.t(), U_c.t(), U_o.t()]).flatten(0, 1)
    bias = torch.cat([b_i, b_f, b_c, b_o])
    nothing = torch.zeros_like(bias)
    h, c = torch.lstm_cell(x_t[None], [h_prev[None], c_prev[None]], w_ih, w_hh, bias, nothing)
    return h[0], c[0]
