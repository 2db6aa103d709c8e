import torch
def lstm_step(x_t, h_prev, c_prev, W_f, U_f, b_f, W_i, U_i, b_i, W_o, U_o, b_o, W_c, U_c, b_c):
    z = torch.cat((x_t, h_prev), dim=0)
    n = h_prev.numel()
    A = torch.cat([torch.cat((W, U), 0) for W, U in ((W_f, U_f), (W_i, U_i), (W_o, U_o), (W_c, U_c))], 1)
    pre = z @ A + torch.cat((b_f, b_i, b_o, b_c))
    f, i, o = torch.sigmoid(pre[: 3 * n]).view(3, n)
    c = f * c_prev + i * torch.tanh(pre[3 * n :])
    h = o * c.tanh()
    return (h, c)
