import torch
def lstm_forward(X, h0, c0, W_f, U_f, b_f, W_i, U_i, b_i, W_o, U_o, b_o, W_c, U_c, b_c):
    if len(X) == 0:
        return X.new_zeros(0, len(h0)), X.new_zeros(0, len(h0))
    s = torch.sigmoid
    x = X[0]
    c = s(x @ W_f + h0 @ U_f + b_f) * c0 + s(x @ W_i + h0 @ U_i + b_i) * torch.tanh(x @ W_c + h0 @ U_c + b_c)
    h = s(x @ W_o + h0 @ U_o + b_o) * torch.tanh(c)
    H, C = lstm_forward(X[1:], h, c, W_f, U_f, b_f, W_i, U_i, b_i, W_o, U_o, b_o, W_c, U_c, b_c)
    return torch.cat([h[None], H]), torch.cat([c[None], C])
