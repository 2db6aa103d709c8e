import torch


def lstm_step(x_t, h_prev, c_prev, W_f, U_f, b_f, W_i, U_i, b_i, W_o, U_o, b_o, W_c, U_c, b_c):
    def pre(W, U, b):
        return x_t.matmul(W) + h_prev.matmul(U) + b

    forget, inp, out = (torch.sigmoid(pre(*p)) for p in ((W_f, U_f, b_f), (W_i, U_i, b_i), (W_o, U_o, b_o)))
    c = c_prev + inp * torch.tanh(pre(W_c, U_c, b_c))
    c = forget * c
    return out * torch.tanh(c), c
