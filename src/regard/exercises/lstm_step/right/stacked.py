import torch

def lstm_step(x_t, h_prev, c_prev, W_f, U_f, b_f, W_i, U_i, b_i, W_o, U_o, b_o, W_c, U_c, b_c):
    W = torch.cat([torch.cat([W_f, W_i, W_o, W_c], dim=1), torch.cat([U_f, U_i, U_o, U_c], dim=1)], dim=0)
    z = torch.cat([x_t, h_prev]) @ W + torch.cat([b_f, b_i, b_o, b_c])
    f, i, o, g = z.chunk(4)
    c_t = f.sigmoid() * c_prev + i.sigmoid() * g.tanh()
    return o.sigmoid() * c_t.tanh(), c_t
