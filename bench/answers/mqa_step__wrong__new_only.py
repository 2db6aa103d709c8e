import torch
def mqa_step(x, prev_K, prev_V, W_q, W_k, W_v, W_o):
    q = torch.einsum("bd,hdk->bhk", x, W_q)
    K = torch.concat([prev_K, torch.unsqueeze(torch.einsum("bd,dk->bk", x, W_k), 1)], 1)
    V = torch.concat([prev_V, torch.unsqueeze(torch.einsum("bd,dv->bv", x, W_v), 1)], 1)
    logits = torch.einsum("bhk,bmk->bhm", q, K)
    weights = torch.softmax(logits, -1)
    o = torch.einsum("bhm,bmv->bhv", weights, V)
    y = torch.einsum("bhv,hvd->bd", o, W_o)
    return y, K[:, -1:], V[:, -1:]
