import torch
def next_token_probs(logits, temperature=1.0, top_k=None, top_p=1.0):
    rank = logits.argsort(-1, descending=True).argsort(-1)
    if temperature == 0:
        return (rank == 0).to(logits.dtype)
    p = (logits / temperature).softmax(-1)
    if top_k is not None:
        p = p * (rank < top_k)
        p = p / p.sum(-1, keepdim=True)
    larger = (p[:, None, :] * (rank[:, None, :] < rank[:, :, None])).sum(-1)
    keep = (larger < top_p) & (p > 0) if top_p < 1 else p > 0
    p = p * keep
    return p / p.sum(-1, keepdim=True)
