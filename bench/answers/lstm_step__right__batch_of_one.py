import torch
def lstm_step(x_t, h_prev, c_prev, W_f, U_f, b_f, W_i, U_i, b_i, W_o, U_o, b_o, W_c, U_c, b_c):
    x, h, c = x_t[None], h_prev[None], c_prev[None]
    F = torch.sigmoid(torch.mm(x, W_f) + torch.mm(h, U_f) + b_f)
    I = torch.sigmoid(torch.mm(x, W_i) + torch.mm(h, U_i) + b_i)
    O = torch.sigmoid(torch.mm(x, W_o) + torch.mm(h, U_o) + b_o)
    C_tilda = torch.tanh(torch.mm(x, W_c) + torch.mm(h, U_c) + b_c)
    C = F * c + I * C_tilda
    H = O * torch.tanh(C)
    return [H[0], C[0]]
