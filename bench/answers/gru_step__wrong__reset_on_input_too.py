import torch


def gru_step(x_t, h_prev, W_z, U_z, b_z, W_r, U_r, b_r, W_h, U_h, b_h):
    z = torch.sigmoid(x_t @ W_z + h_prev @ U_z + b_z)
    r = torch.sigmoid(x_t @ W_r + h_prev @ U_r + b_r)
    candidate = torch.tanh(r * (x_t @ W_h + h_prev @ U_h) + b_h)
    return z * h_prev + (1 - z) * candidate
