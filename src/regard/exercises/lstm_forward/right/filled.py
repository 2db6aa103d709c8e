import torch

def lstm_step(x_t, h_prev, c_prev, W_f, U_f, b_f, W_i, U_i, b_i, W_o, U_o, b_o, W_c, U_c, b_c):
    f = torch.sigmoid(x_t @ W_f + h_prev @ U_f + b_f)
    i = torch.sigmoid(x_t @ W_i + h_prev @ U_i + b_i)
    o = torch.sigmoid(x_t @ W_o + h_prev @ U_o + b_o)
    g = torch.tanh(x_t @ W_c + h_prev @ U_c + b_c)
    c_t = f * c_prev + i * g
    return o * torch.tanh(c_t), c_t

def lstm_forward(X, h0, c0, W_f, U_f, b_f, W_i, U_i, b_i, W_o, U_o, b_o, W_c, U_c, b_c):
    H = X.new_zeros(X.size(0), h0.size(0))
    C = X.new_zeros(X.size(0), c0.size(0))
    h_t, c_t = h0, c0
    for t in range(X.size(0)):
        h_t, c_t = lstm_step(X[t], h_t, c_t, W_f, U_f, b_f, W_i, U_i, b_i, W_o, U_o, b_o, W_c, U_c, b_c)
        H[t], C[t] = h_t, c_t
    return H, C
