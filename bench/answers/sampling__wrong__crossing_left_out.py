import torch

def next_token_probs(logits, temperature=1.0, top_k=None, top_p=1.0):
    if temperature < 1e-6:
        return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).to(logits.dtype)
    logits = logits / temperature
    if top_k is not None and top_k < logits.shape[-1]:
        least = logits.topk(top_k, dim=-1).values[:, -1, None]
        logits = logits.masked_fill(logits < least, float("-inf"))
    if top_p < 1:
        probs = logits.softmax(-1)
        ranked = probs.sort(-1, descending=True).values
        count = (ranked.cumsum(-1) < top_p).sum(-1, keepdim=True).clamp(max=probs.shape[-1] - 1)
        logits = logits.masked_fill(probs <= ranked.gather(-1, count), float("-inf"))
    return logits.softmax(-1)
