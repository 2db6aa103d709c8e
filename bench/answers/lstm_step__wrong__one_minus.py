import torch
def lstm_step(x_t, h_prev, c_prev, W_f, U_f, b_f, W_i, U_i, b_i, W_o, U_o, b_o, W_c, U_c, b_c):
    def affine(W, U, b):
        return torch.mv(W.t(), x_t) + torch.mv(U.t(), h_prev) + b
    forget, take, emit = (torch.sigmoid(affine(*p)) for p in ((W_f, U_f, b_f), (W_i, U_i, b_i), (W_o, U_o, b_o)))
    c = torch.addcmul(forget * c_prev, 1 - forget, torch.tanh(affine(W_c, U_c, b_c)))
    return emit * torch.tanh(c), c
