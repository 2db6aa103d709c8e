import torch


def gru_step(x_t, h_prev, W_z, U_z, b_z, W_r, U_r, b_r, W_h, U_h, b_h):
    def gate(W, U, b):
        return torch.sigmoid(torch.einsum("i,ij->j", x_t, W) + torch.einsum("i,ij->j", h_prev, U) + b)

    reset = gate(W_z, U_z, b_z)
    update = gate(W_r, U_r, b_r)
    fresh = torch.tanh(torch.einsum("i,ij->j", x_t, W_h) + torch.einsum("i,ij->j", reset * h_prev, U_h) + b_h)
    return torch.lerp(fresh, h_prev, update)
