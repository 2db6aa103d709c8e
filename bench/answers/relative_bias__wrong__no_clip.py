import torch
def relative_bias_attention(q, k, v, table):
    n, d = q.shape[-2:]
    r = (table.shape[1] - 1) // 2
    rows = []
    for i in range(n):
        cols = [table[:, (j - i + r) % (2 * r + 1)] for j in range(n)]
        rows.append(torch.stack(cols, -1))
    bias = torch.stack(rows, 1)
    return torch.softmax(q @ k.transpose(-1, -2) / d**0.5 + bias, -1) @ v
