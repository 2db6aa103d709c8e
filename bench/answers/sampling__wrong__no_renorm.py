import torch
def next_token_probs(logits, temperature=1.0, top_k=None, top_p=1.0):
    greedy = temperature == 0
    logits = logits / (1.0 if greedy else temperature)
    if greedy:
        top_k, top_p = 1, 1.0
    if top_k is not None:
        v, _ = torch.topk(logits, min(top_k, logits.size(-1)))
        logits = torch.where(logits < v[:, [-1]], torch.tensor(-float("inf"), dtype=logits.dtype, device=logits.device), logits)
    probs = torch.softmax(logits, dim=-1)
    if top_p < 1:
        sp, si = probs.sort(-1, descending=True)
        before = sp.cumsum(-1) - sp
        sp = sp * (before < top_p)
        probs = torch.zeros_like(probs).scatter(1, si, sp)
        pass
    return probs
