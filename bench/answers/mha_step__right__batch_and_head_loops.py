import torch
def mha_step(x, prev_K, prev_V, W_q, W_k, W_v, W_o):
    b, h, n, k = prev_K.shape
    new_K = torch.zeros(b, h, n + 1, k, dtype=x.dtype, device=x.device)
    new_V = torch.zeros(b, h, n + 1, prev_V.shape[3], dtype=x.dtype, device=x.device)
    new_K[:, :, :n] = prev_K
    new_V[:, :, :n] = prev_V
    y = torch.zeros_like(x)
    for i in range(b):
        for j in range(h):
            new_K[i, j, n] = x[i] @ W_k[j]
            new_V[i, j, n] = x[i] @ W_v[j]
    out = []
    for i in range(b):
        total = torch.zeros_like(x[0])
        for j in range(h):
            a = torch.softmax(new_K[i, j] @ (x[i] @ W_q[j]), dim=0)
            total = total + (a @ new_V[i, j]) @ W_o[j]
        out.append(total)
    return torch.stack(out), new_K, new_V
