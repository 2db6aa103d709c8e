import torch

def gru_step(x_t, h_prev, W_z, U_z, b_z, W_r, U_r, b_r, W_h, U_h, b_h):
    before_z = torch.matmul(x_t, W_z) + torch.matmul(h_prev, U_z) + b_z
    before_r = torch.matmul(x_t, W_r) + torch.matmul(h_prev, U_r) + b_r
    update = torch.sigmoid(before_z)
    reset = torch.sigmoid(before_r)
    seen = reset * h_prev
    before_h = torch.matmul(x_t, W_h) + torch.matmul(seen, U_h) + b_h
    new = torch.tanh(before_h)
    kept = update * h_prev
    taken = (1 - update) * new
    return kept + taken
