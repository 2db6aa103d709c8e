import torch
def mqa_step(x, prev_K, prev_V, W_q, W_k, W_v, W_o):
    h, d, k = W_q.shape
    q = (x @ W_q.permute(1, 0, 2).reshape(d, h * k)).view(-1, h, k)
    K = torch.hstack([prev_K, (x @ W_k).unsqueeze(1)])
    V = torch.hstack([prev_V, (x @ W_v).unsqueeze(1)])
    s = q @ K.transpose(1, 2)
    e = torch.exp(s - s.max(-1, keepdim=True)[0])
    o = (e / e.sum(-1, keepdim=True)) @ V
    return o.flatten(1) @ W_o.reshape(-1, d), K, V
