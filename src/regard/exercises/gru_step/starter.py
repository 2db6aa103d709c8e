import torch


def gru_step(x_t, h_prev, W_z, U_z, b_z, W_r, U_r, b_r, W_h, U_h, b_h):
    """x_t (inputs,), h_prev (hidden,) -> the next state (hidden,)."""
    raise NotImplementedError
