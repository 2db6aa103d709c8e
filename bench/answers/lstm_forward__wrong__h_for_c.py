import torch
def lstm_forward(X, h0, c0, W_f, U_f, b_f, W_i, U_i, b_i, W_o, U_o, b_o, W_c, U_c, b_c):
    W = torch.cat([W_f, W_i, W_o, W_c], dim=1)
    U = torch.cat([U_f, U_i, U_o, U_c], dim=1)
    b = torch.cat([b_f, b_i, b_o, b_c])
    h, c, H, C = h0, c0, [], []
    for x in X:
        f, i, o, g = (x @ W + h @ U + b).split(len(h0))
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        H += [h]
        C += [h]
    return torch.stack(H), torch.stack(C)
