import torch

def mha_step(x, prev_K, prev_V, W_q, W_k, W_v, W_o):
    y, Ks, Vs = torch.zeros_like(x), [], []
    for h in range(W_q.shape[0]):
        K = torch.cat((prev_K[:, h], (x @ W_k[h])[:, None, :]), 1)
        V = torch.cat((prev_V[:, h], (x @ W_v[h])[:, None, :]), 1)
        s = (K * (x @ W_q[h])[:, None, :]).sum(-1)
        e = torch.exp(s - s.amax(dim=1, keepdim=True))
        a = e / e.sum(dim=1, keepdim=True)
        y = y + (a[..., None] * V).sum(1) @ W_o[h]
        Ks.append(K)
        Vs.append(V)
    return y, torch.stack(Ks, 1), torch.stack(Vs, 1)
