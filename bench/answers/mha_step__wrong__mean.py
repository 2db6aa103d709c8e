import torch
def mha_step(x, prev_K, prev_V, W_q, W_k, W_v, W_o):
    q = torch.einsum("bd,hdk->bhk", x, W_q)
    new_K = torch.concat([prev_K, torch.einsum("bd,hdk->bhk", x, W_k).unsqueeze(2)], axis=2)
    new_V = torch.concat([prev_V, torch.einsum("bd,hdv->bhv", x, W_v).unsqueeze(2)], axis=2)
    logits = torch.einsum("bhk,bhmk->bhm", q, new_K)
    weights = torch.softmax(logits, -1)
    o = torch.einsum("bhm,bhmv->bhv", weights, new_V)
    return torch.einsum("bhv,hvd->bhd", o, W_o).mean(1), new_K, new_V
