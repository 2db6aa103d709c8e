import torch

def lstm_forward(X, h0, c0, W_f, U_f, b_f, W_i, U_i, b_i, W_o, U_o, b_o, W_c, U_c, b_c):
    W, U = torch.hstack([W_f, W_i, W_o, W_c]), torch.hstack([U_f, U_i, U_o, U_c])
    ahead = X @ W + torch.cat([b_f, b_i, b_o, b_c])
    h, c, pairs = h0, c0, []
    for row in ahead:
        f, i, o, g = (row + h @ U).view(4, -1)
        c = f.sigmoid().mul(c) + i.sigmoid().mul(g.tanh())
        h = o.sigmoid().mul(c.tanh())
        pairs.append((h, c))
    H, C = zip(*pairs)
    return torch.stack(H), torch.stack(C)
