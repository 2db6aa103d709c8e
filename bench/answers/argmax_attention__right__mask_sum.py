import torch
def argmax_attention(q, K, V):
    with torch.no_grad():
        s = torch.einsum("d,md->m", q, K)
        hard = (s == s.max()).to(V.dtype)
    return hard @ V
