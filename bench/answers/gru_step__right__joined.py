import torch
def gru_step(x_t, h_prev, W_z, U_z, b_z, W_r, U_r, b_r, W_h, U_h, b_h):
    joint = torch.cat([x_t, h_prev])
    gates = 1 / (1 + torch.exp(-(joint @ torch.cat([torch.cat([W_z, U_z]), torch.cat([W_r, U_r])], dim=1) + torch.cat([b_z, b_r]))))
    z, r = gates.chunk(2)
    new = torch.tanh(torch.cat([x_t, r * h_prev]) @ torch.cat([W_h, U_h]) + b_h)
    return z * h_prev + (1 - z) * new
