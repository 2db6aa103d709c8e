import torch


def lstm_step(x_t, h_prev, c_prev, W_f, U_f, b_f, W_i, U_i, b_i, W_o, U_o, b_o, W_c, U_c, b_c):
    """x_t (inputs,), h_prev and c_prev (hidden,) -> the next (h, c), both (hidden,)."""
    raise NotImplementedError
