import torch
def argmax_attention(q, K, V):
    best, index = torch.max(q @ K.T, dim=-1)
    return torch.index_select(V, 0, index.reshape(1))[0]
