import torch

def mqa_step(x, prev_K, prev_V, W_q, W_k, W_v, W_o):
    b, d = x.shape
    h, _, k = W_q.shape
    q = (x @ W_q.permute(1, 0, 2).reshape(d, h * k)).reshape(b, h, k)
    new_K = torch.cat([prev_K, torch.matmul(x, W_k).unsqueeze(1)], dim=1)
    new_V = torch.cat([prev_V, torch.matmul(x, W_v).unsqueeze(1)], dim=1)
    a = torch.bmm(q, new_K.transpose(1, 2)).softmax(dim=2)
    out = torch.bmm(a, new_V)
    return out.reshape(b, -1) @ W_o.reshape(-1, W_o.shape[2]), new_K, new_V
