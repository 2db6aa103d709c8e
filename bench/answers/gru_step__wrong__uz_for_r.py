import torch


def gru_step(x_t, h_prev, W_z, U_z, b_z, W_r, U_r, b_r, W_h, U_h, b_h):
    z = (x_t @ W_z + h_prev @ U_z + b_z).sigmoid()
    r = (x_t @ W_r + h_prev @ U_z + b_r).sigmoid()
    h_hat = (x_t @ W_h + (r * h_prev) @ U_h + b_h).tanh()
    return z * h_prev + (1 - z) * h_hat
