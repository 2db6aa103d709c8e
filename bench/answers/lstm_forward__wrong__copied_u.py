import torch


def lstm_forward(X, h0, c0, W_f, U_f, b_f, W_i, U_i, b_i, W_o, U_o, b_o, W_c, U_c, b_c):
    h, c, hs, cs = h0, c0, [], []
    for x in X:
        f = torch.sigmoid(x @ W_f + h @ U_f + b_f)
        i = torch.sigmoid(x @ W_i + h @ U_f + b_i)
        o = torch.sigmoid(x @ W_o + h @ U_o + b_o)
        c = f * c + i * torch.tanh(x @ W_c + h @ U_c + b_c)
        h = o * torch.tanh(c)
        hs.append(h)
        cs.append(c)
    return torch.stack(hs), torch.stack(cs)
