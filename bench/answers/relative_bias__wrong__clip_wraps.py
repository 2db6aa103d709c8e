import torch


def relative_bias_attention(q, k, v, table):
    n, d = q.size(2), q.size(3)
    r = table.size(1) // 2
    scores = q @ k.mT / d**0.5
    bias = torch.zeros(table.size(0), n, n, dtype=q.dtype, device=q.device)
    for i in range(n):
        for j in range(n):
            if abs(j - i) <= r:
                bias[:, i, j] = table[:, j - i + r]
    return (scores + bias).softmax(-1) @ v
