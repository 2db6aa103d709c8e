import torch
def argmax_attention(q, K, V):
    return V[(K @ q).argmax(keepdim=True)]
