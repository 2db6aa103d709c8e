import torch


def lstm_forward(X, h0, c0, W_f, U_f, b_f, W_i, U_i, b_i, W_o, U_o, b_o, W_c, U_c, b_c):
    h, c = h0, c0
    hidden_states, cells = [], []
    for x in X:
        cells.append(c)
        f, i, o = (
            torch.sigmoid(x @ W + h @ U + b)
            for W, U, b in ((W_f, U_f, b_f), (W_i, U_i, b_i), (W_o, U_o, b_o))
        )
        c = f * c + i * torch.tanh(x @ W_c + h @ U_c + b_c)
        h = o * torch.tanh(c)
        hidden_states.append(h)
    return torch.stack(hidden_states), torch.stack(cells)
