import torch

def relative_bias_attention(q, k, v, table):
    n, r = q.shape[2], table.shape[1] // 2
    middle = table
    if n - 1 > r:
        more = n - 1 - r
        middle = torch.cat([table[:, :1].expand(-1, more), table, table[:, -1:].expand(-1, more)], dim=1)
    zero = middle.shape[1] // 2
    bias = torch.stack([middle[:, zero - i : zero - i + n] for i in range(n)], dim=1)
    return (q @ k.transpose(2, 3) / q.shape[3] ** 0.5 + bias).softmax(3) @ v
