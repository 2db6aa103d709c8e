import torch

def linear_attention(Q, K, V, phi, causal=False):
    with_one = torch.cat([V, V.new_ones(V.shape[0], 1)], dim=1)
    if causal:
        weights = torch.matmul(phi(Q), phi(K).transpose(0, 1))
        i = torch.arange(Q.shape[0], device=Q.device)
        weights = torch.where(i[:, None] >= i[None, :], weights, torch.zeros_like(weights))
        both = weights @ with_one
    else:
        both = torch.matmul(phi(Q), torch.matmul(phi(K).transpose(0, 1), with_one))
    return both[:, :-1] / both[:, -1:]
