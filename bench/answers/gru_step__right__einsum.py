import torch
def gru_step(x_t, h_prev, W_z, U_z, b_z, W_r, U_r, b_r, W_h, U_h, b_h):
    xs = torch.einsum("i,gih->gh", x_t, torch.stack([W_z, W_r, W_h])) + torch.stack([b_z, b_r, b_h])
    hs = torch.einsum("k,gkh->gh", h_prev, torch.stack([U_z, U_r]))
    z, r = (xs[:2] + hs).sigmoid()
    return (1 - z) * (xs[2] + (r * h_prev) @ U_h).tanh() + z * h_prev
