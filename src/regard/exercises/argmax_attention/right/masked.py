import torch

def argmax_attention(q, K, V):
    scores = torch.matmul(q.unsqueeze(0), K.T).squeeze(0)
    hit = scores == scores.max()
    return torch.where(hit[:, None], V, torch.zeros_like(V)).sum(dim=0)
