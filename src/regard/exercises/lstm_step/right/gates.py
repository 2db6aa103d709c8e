import torch

def lstm_step(x_t, h_prev, c_prev, W_f, U_f, b_f, W_i, U_i, b_i, W_o, U_o, b_o, W_c, U_c, b_c):
    """The next hidden state and cell."""
    forget = torch.sigmoid(x_t @ W_f + h_prev @ U_f + b_f)
    enter = torch.sigmoid(x_t @ W_i + h_prev @ U_i + b_i)
    leave = torch.sigmoid(x_t @ W_o + h_prev @ U_o + b_o)
    c = forget * c_prev + enter * torch.tanh(x_t @ W_c + h_prev @ U_c + b_c)
    return leave * torch.tanh(c), c
