import torch

def lstm_forward(X, h0, c0, W_f, U_f, b_f, W_i, U_i, b_i, W_o, U_o, b_o, W_c, U_c, b_c):
    w_ih = torch.cat([W_i.T, W_f.T, W_c.T, W_o.T])
    w_hh = torch.cat([U_i.T, U_f.T, U_c.T, U_o.T])
    bias = torch.cat([b_i, b_f, b_c, b_o])
    state = (h0[None], c0[None])
    hidden, cells = [], []
    for x in X.unbind():
        state = torch.lstm_cell(x[None], state, w_ih, w_hh, bias, torch.zeros_like(bias))
        hidden.append(state[0])
        cells.append(state[1])
    return torch.cat(hidden), torch.cat(cells)
