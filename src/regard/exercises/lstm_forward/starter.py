import torch


def lstm_forward(X, h0, c0, W_f, U_f, b_f, W_i, U_i, b_i, W_o, U_o, b_o, W_c, U_c, b_c):
    """X (T, inputs), h0 and c0 (hidden,) -> (H, C), both (T, hidden): the states after each input."""
    raise NotImplementedError
