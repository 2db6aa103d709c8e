import torch


def mha_step(x, prev_K, prev_V, W_q, W_k, W_v, W_o):
    q, k, v = (torch.einsum("bd,hdk->bhk", x, W) for W in (W_q, W_k, W_v))
    K, V = torch.cat([prev_K, k.unsqueeze(2)], 2), torch.cat([prev_V, v.unsqueeze(2)], 2)
    o = torch.einsum("bhn,bhnv->bhv", torch.einsum("bhk,bhnk->bhn", q, K).softmax(-1), V)
    return (o @ W_o[0]).sum(1), K, V
