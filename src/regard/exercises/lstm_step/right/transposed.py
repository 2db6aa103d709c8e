import torch
import torch.nn.functional as F

def lstm_step(x_t, h_prev, c_prev, W_f, U_f, b_f, W_i, U_i, b_i, W_o, U_o, b_o, W_c, U_c, b_c):
    def gate(W, U, b, activation):
        return activation(F.linear(x_t, W.T) + F.linear(h_prev, U.T, b))

    f, i, o = (gate(*p, torch.sigmoid) for p in [(W_f, U_f, b_f), (W_i, U_i, b_i), (W_o, U_o, b_o)])
    c = torch.addcmul(f * c_prev, i, gate(W_c, U_c, b_c, torch.tanh))
    return (o * c.tanh(), c)
