import torch


def rnn_step(x_t, h_prev, W_x, W_h, b):
    """x_t (input,), h_prev (hidden,), W_x (input, hidden), W_h (hidden, hidden), b (hidden,) -> (hidden,)."""
    raise NotImplementedError
