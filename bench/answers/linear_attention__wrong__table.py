import torch
def linear_attention(Q, K, V, phi, causal=False):
    V1 = torch.cat([V, torch.ones_like(V[:, :1])], dim=1)
    fq, fk = phi(Q), phi(K)
    if causal:
        both = torch.tril(fq @ fk.T) @ V1
    else:
        both = (fq @ fk.T) @ V1
    return both[:, :-1] / both[:, -1:]
