import torch
def lstm_forward(X, h0, c0, W_f, U_f, b_f, W_i, U_i, b_i, W_o, U_o, b_o, W_c, U_c, b_c):
    w_ih = torch.cat([W_i, W_f, W_c, W_o], 1).t()
    w_hh = torch.cat([U_i, U_f, U_c, U_o], 1).t()
    b = torch.cat([b_i, b_f, b_c, b_o])
    h, c = h0.unsqueeze(0), c0.unsqueeze(0)
    hs, cs = [], []
    for x in X:
        h, c = torch.lstm_cell(x.unsqueeze(0), (h, c), w_ih, w_hh, b, torch.zeros_like(b))
        hs.append(h)
        cs.append(c)
    return torch.cat(hs), torch.cat(cs)
