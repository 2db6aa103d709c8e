import torch


def mqa_step(x, prev_K, prev_V, W_q, W_k, W_v, W_o):
    """x (b, d), prev_K (b, n, k), prev_V (b, n, v), W_q (h, d, k), W_k (d, k), W_v (d, v), W_o (h, v, d).

    Returns y (b, d), new_K (b, n + 1, k), new_V (b, n + 1, v).
    """
    raise NotImplementedError
