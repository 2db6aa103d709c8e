import torch


def mqa_step(x, prev_K, prev_V, W_q, W_k, W_v, W_o):
    q = (x @ W_q).transpose(0, 1)
    new_K = torch.cat((prev_K, torch.mm(x, W_k).unsqueeze(1)), 1)
    new_V = torch.cat((prev_V, torch.mm(x, W_v).unsqueeze(1)), 1)
    weights = torch.bmm(q, new_K.transpose(1, 2)).softmax(dim=2)
    shared = weights.mean(dim=1, keepdim=True)
    read = torch.bmm(shared, new_V).squeeze(1)
    y = torch.einsum("bv,hvd->bd", read, W_o)
    return y, new_K, new_V
