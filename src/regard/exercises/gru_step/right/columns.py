import torch

def gru_step(x_t, h_prev, W_z, U_z, b_z, W_r, U_r, b_r, W_h, U_h, b_h):
    n = h_prev.shape[0]

    def row(v, M):
        return torch.stack([sum(v[k] * M[k, j] for k in range(v.shape[0])) for j in range(n)])

    z = 1 / (1 + torch.exp(-(row(x_t, W_z) + row(h_prev, U_z) + b_z)))
    r = 1 / (1 + torch.exp(-(row(x_t, W_r) + row(h_prev, U_r) + b_r)))
    c = torch.tanh(row(x_t, W_h) + row(r * h_prev, U_h) + b_h)
    return c + z * (h_prev - c)
