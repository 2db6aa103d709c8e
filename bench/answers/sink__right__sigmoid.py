import torch

def sink_attention(q, k, v, sink):
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
    i = torch.arange(q.shape[2], device=q.device)
    scores = torch.where(i <= i[:, None], scores, -torch.inf)
    kept = torch.sigmoid(scores.logsumexp(-1) - sink[:, None])
    return (scores.softmax(-1) @ v) * kept[..., None]
