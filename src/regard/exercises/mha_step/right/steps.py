import torch

def mha_step(x, prev_K, prev_V, W_q, W_k, W_v, W_o):
    q = torch.einsum("bd,hdk->bhk", x, W_q)
    k = torch.einsum("bd,hdk->bhk", x, W_k)
    v = torch.einsum("bd,hdv->bhv", x, W_v)
    new_K = torch.cat([prev_K, k.unsqueeze(-2)], dim=-2)
    new_V = torch.cat([prev_V, v.unsqueeze(-2)], dim=-2)
    logits = torch.einsum("bhk,bhnk->bhn", q, new_K)
    weights = torch.softmax(logits, dim=-1)
    o = torch.einsum("bhn,bhnv->bhv", weights, new_V)
    y = torch.einsum("bhv,hvd->bd", o, W_o)
    return y, new_K, new_V
