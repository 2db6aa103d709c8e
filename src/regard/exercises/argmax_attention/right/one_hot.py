import torch
import torch.nn.functional as F

def argmax_attention(q, K, V):
    s = torch.einsum("d,md->m", q, K)
    alpha = F.one_hot(s.argmax(dim=0), num_classes=K.shape[0]).to(V.dtype)
    return alpha @ V
