import torch

def linear_attention(Q, K, V, phi, causal=False):
    fq = phi(Q)
    fk = phi(K)
    if causal:
        table = fq @ fk.T
        table = torch.tril(table)
        total = table.sum(dim=1, keepdim=True)
        return (table @ V) / total
    S = fk.T @ V
    z = fk.sum(dim=0)
    top = fq @ S
    bottom = fq @ z
    return top / bottom[:, None]
