import torch


def argmax_attention(q, K, V):
    # a differentiable argmax: the expected index, rounded
    p = torch.softmax(K.matmul(q), dim=0)
    index = (p * torch.arange(len(K), dtype=p.dtype, device=p.device)).sum()
    return V[int(index.round())]
