import torch
def sliding_window_attention(q, k, v, window):
    rows = []
    for i in range(q.shape[2]):
        first = max(0, i - window + 1)
        s = q[:, :, i : i + 1] @ k[:, :, first : i + 1].transpose(2, 3)
        rows.append(torch.softmax(s, -1) @ v[:, :, first : i + 1])
    return torch.cat(rows, 2)
