import torch


def lstm_step(x_t, h_prev, c_prev, W_f, U_f, b_f, W_i, U_i, b_i, W_o, U_o, b_o, W_c, U_c, b_c):
    def lin(W, U, b):
        return x_t.matmul(W) + h_prev.matmul(U) + b

    forget, enter, leave = (lin(*g).sigmoid() for g in [(W_f, U_f, b_f), (W_i, U_i, b_i), (W_o, U_o, b_o)])
    cell = forget * c_prev + enter * lin(W_c, U_c, b_c).tanh()
    return torch.tanh(leave * cell), cell
