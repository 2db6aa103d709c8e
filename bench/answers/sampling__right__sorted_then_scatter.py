import torch
import torch.nn.functional as F


@torch.no_grad()
def next_token_probs(logits, temperature=1.0, top_k=None, top_p=1.0):
    values, index = logits.sort(dim=-1, descending=True)
    if temperature == 0:
        return F.one_hot(index[:, 0], logits.shape[-1]).to(logits)
    rank = torch.arange(logits.shape[-1], device=logits.device)
    keep = rank < (top_k or logits.shape[-1])
    p = (values / temperature).masked_fill(~keep, float("-inf")).softmax(-1)
    before = F.pad(p.cumsum(-1), (1, 0))[:, :-1]
    if top_p < 1.0:
        p = p * (before < top_p)
    return torch.empty_like(p).scatter_(-1, index, p / p.sum(-1, keepdim=True))
