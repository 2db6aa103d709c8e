import torch

def gru_step(x_t, h_prev, W_z, U_z, b_z, W_r, U_r, b_r, W_h, U_h, b_h):
    w_ih = torch.cat([W_r.T, W_z.T, W_h.T])
    w_hh = torch.cat([U_r.T, U_z.T, U_h.T])
    bias = torch.cat([b_r, b_z, b_h])
    h = torch.gru_cell(x_t.unsqueeze(0), h_prev.unsqueeze(0), w_ih, w_hh, bias, torch.zeros_like(bias))
    return h.squeeze(0)
