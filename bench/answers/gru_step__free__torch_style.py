import torch
from torch.nn import functional as F


def gru_step(x_t, h_prev, W_z, U_z, b_z, W_r, U_r, b_r, W_h, U_h, b_h):
    gx = F.linear(x_t, torch.cat([W_r, W_z, W_h], 1).T, torch.cat([b_r, b_z, b_h]))
    gh = F.linear(h_prev, torch.cat([U_r, U_z, U_h], 1).T)
    xr, xz, xn = gx.chunk(3)
    hr, hz, hn = gh.chunk(3)
    r, z = torch.sigmoid(xr + hr), torch.sigmoid(xz + hz)
    n = torch.tanh(xn + r * hn)
    return (1 - z) * n + z * h_prev
