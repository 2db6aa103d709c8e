import torch
def argmax_attention(q, K, V):
    return torch.tensor(V[(K @ q).argmax()].tolist())
