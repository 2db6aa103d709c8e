from functools import partial

import torch


def affine(x, h, W, U, b):
    return torch.addmv(b, W.t(), x) + torch.mv(U.t(), h)


def lstm_step(x_t, h_prev, c_prev, W_f, U_f, b_f, W_i, U_i, b_i, W_o, U_o, b_o, W_c, U_c, b_c):
    pre = partial(affine, x_t, h_prev)
    keep = pre(W_f, U_f, b_f).sigmoid()
    write = pre(W_i, U_i, b_i).sigmoid()
    read = pre(W_o, U_o, b_o).sigmoid()
    cell = c_prev * keep + write * pre(W_c, U_c, b_c).tanh()
    return read * cell.tanh(), cell
