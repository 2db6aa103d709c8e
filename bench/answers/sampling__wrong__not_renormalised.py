import torch


def next_token_probs(logits, temperature=1.0, top_k=None, top_p=1.0):
    if temperature == 0:
        return torch.eye(logits.shape[1], dtype=logits.dtype)[logits.argmax(1)]
    logits = logits / temperature
    if top_k is not None:
        k = min(top_k, logits.shape[1])
        smallest = logits.topk(k, dim=1).values.min(dim=1, keepdim=True).values
        logits = logits.masked_fill(logits < smallest, float("-inf"))
    probs = logits.softmax(dim=1)
    if top_p < 1.0:
        sorted_p, order = probs.sort(dim=1, descending=True)
        keep = (sorted_p.cumsum(dim=1) - sorted_p) < top_p
        probs = torch.zeros_like(probs).scatter(1, order, sorted_p * keep)
    return probs
