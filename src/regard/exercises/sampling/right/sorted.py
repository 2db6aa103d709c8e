import torch

def next_token_probs(logits, temperature=1.0, top_k=None, top_p=1.0):
    if temperature == 0:
        return torch.zeros_like(logits).scatter(-1, logits.argmax(-1, keepdim=True), 1.0)
    values, tokens = torch.sort(logits / temperature, dim=-1, descending=True)
    if top_k is not None:
        values = values.masked_fill(torch.arange(values.shape[-1], device=logits.device) >= top_k, float("-inf"))
    probs = values.softmax(-1)
    if top_p < 1.0:
        before = probs.float().cumsum(-1) - probs
        probs = torch.where(before < top_p, probs, 0.0)
        probs = probs / probs.sum(-1, keepdim=True)
    return torch.zeros_like(logits).scatter(-1, tokens, probs)
