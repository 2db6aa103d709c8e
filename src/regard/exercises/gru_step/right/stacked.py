import torch

def gru_step(x_t, h_prev, W_z, U_z, b_z, W_r, U_r, b_r, W_h, U_h, b_h):
    both = torch.cat([x_t, h_prev], dim=-1)
    W = torch.cat([torch.cat([W_z, W_r], 1), torch.cat([U_z, U_r], 1)], 0)
    z, r = torch.chunk(torch.sigmoid(both @ W + torch.cat([b_z, b_r])), 2)
    n = torch.tanh(torch.cat([x_t, r * h_prev]) @ torch.cat([W_h, U_h], 0) + b_h)
    return torch.lerp(n, h_prev, z)
