import torch
def argmax_attention(q, K, V):
    scores = [float(torch.dot(q, k)) for k in K]
    return V[scores.index(max(scores))]
