import torch
def gru_step(x_t, h_prev, W_z, U_z, b_z, W_r, U_r, b_r, W_h, U_h, b_h):
    x, h = x_t.reshape(-1, 1), h_prev.reshape(-1, 1)
    def gate(W, U, b, s=h):
        return W.T @ x + U.T @ s + b.reshape(-1, 1)
    z, r = torch.sigmoid(gate(W_z, U_z, b_z)), torch.sigmoid(gate(W_r, U_r, b_r))
    c = torch.tanh(gate(W_h, U_h, b_h, r * h))
    return torch.lerp(c, h, z).squeeze(-1)
