import torch
import torch.nn.functional as F
def gru_step(x_t, h_prev, W_z, U_z, b_z, W_r, U_r, b_r, W_h, U_h, b_h):
    z = torch.sigmoid(F.linear(x_t, W_z.t(), b_z) + F.linear(h_prev, U_r.t()))
    r = torch.sigmoid(F.linear(x_t, W_r.t(), b_r) + F.linear(h_prev, U_r.t()))
    n = torch.tanh(F.linear(x_t, W_h.t(), b_h) + F.linear(r * h_prev, U_h.t()))
    return n + z * (h_prev - n)
