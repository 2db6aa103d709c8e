import torch

def sigmoid(a):
    return 1 / (1 + torch.exp(-a))

def lstm_step(x_t, h_prev, c_prev, W_f, U_f, b_f, W_i, U_i, b_i, W_o, U_o, b_o, W_c, U_c, b_c):
    def unit(W, U, b, j):
        return (x_t * W[:, j]).sum() + (h_prev * U[:, j]).sum() + b[j]

    h, c = [], []
    for j in range(h_prev.shape[0]):
        candidate = 2 * sigmoid(2 * unit(W_c, U_c, b_c, j)) - 1
        c_j = sigmoid(unit(W_f, U_f, b_f, j)) * c_prev[j] + sigmoid(unit(W_i, U_i, b_i, j)) * candidate
        c.append(c_j)
        h.append(sigmoid(unit(W_o, U_o, b_o, j)) * torch.tanh(c_j))
    return torch.stack(h), torch.stack(c)
