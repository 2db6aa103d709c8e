import torch


def mha_step(x, prev_K, prev_V, W_q, W_k, W_v, W_o):
    """x (b, d), prev_K (b, h, n, k), prev_V (b, h, n, v), W_q, W_k (h, d, k), W_v (h, d, v), W_o (h, v, d).

    Returns y (b, d), new_K (b, h, n + 1, k), new_V (b, h, n + 1, v).
    """
    raise NotImplementedError
