import torch

def lstm_step(x_t, h_prev, c_prev, W_f, U_f, b_f, W_i, U_i, b_i, W_o, U_o, b_o, W_c, U_c, b_c):
    before_f = torch.matmul(x_t, W_f) + torch.matmul(h_prev, U_f) + b_f
    before_i = torch.matmul(x_t, W_i) + torch.matmul(h_prev, U_i) + b_i
    before_o = torch.matmul(x_t, W_o) + torch.matmul(h_prev, U_o) + b_o
    before_c = torch.matmul(x_t, W_c) + torch.matmul(h_prev, U_c) + b_c
    forget = torch.sigmoid(before_f)
    enter = torch.sigmoid(before_i)
    leave = torch.sigmoid(before_o)
    new = torch.tanh(before_c)
    kept = forget * c_prev
    added = enter * new
    c = kept + added
    h = leave * torch.tanh(c)
    return h, c
