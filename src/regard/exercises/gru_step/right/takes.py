import torch
import torch.nn.functional as F

def gru_step(x_t, h_prev, W_z, U_z, b_z, W_r, U_r, b_r, W_h, U_h, b_h):
    z = (F.linear(x_t, W_z.t(), b_z) + F.linear(h_prev, U_z.t())).sigmoid()
    r = (F.linear(x_t, W_r.t(), b_r) + F.linear(h_prev, U_r.t())).sigmoid()
    h_tilde = (F.linear(x_t, W_h.t(), b_h) + r * F.linear(h_prev, U_h.t())).tanh()
    return (1 - z) * h_prev + z * h_tilde
