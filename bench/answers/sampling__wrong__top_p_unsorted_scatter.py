import torch


def next_token_probs(logits, temperature=1.0, top_k=None, top_p=1.0):
    if temperature == 0:
        return torch.zeros_like(logits).scatter(1, logits.argmax(1, keepdim=True), 1.0)
    z = logits / temperature
    if top_k is not None and top_k < z.shape[1]:
        z = z.masked_fill(z < z.topk(top_k, 1).values[:, -1:], float("-inf"))
    p = z.softmax(1)
    if top_p < 1:
        s = p.sort(1, descending=True).values
        p = p * (s.cumsum(1) - s < top_p)
    return p / p.sum(1, keepdim=True)
