import torch
def mqa_step(x, prev_K, prev_V, W_q, W_k, W_v, W_o):
    K = torch.cat([prev_K, (x @ W_k)[:, None, :]], dim=1)
    V = torch.cat([prev_V, (x @ W_v)[:, None, :]], dim=1)
    y = torch.zeros_like(x)
    for wq, wo in zip(W_q, W_o):
        scores = torch.bmm(K, (x @ wq).unsqueeze(2)).squeeze(2)
        y = y + torch.bmm(scores.softmax(-1).unsqueeze(1), V).squeeze(1) @ wo
    return y, K, V
