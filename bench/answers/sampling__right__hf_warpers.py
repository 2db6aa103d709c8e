import torch
import torch.nn.functional as F
def next_token_probs(logits, temperature=1.0, top_k=None, top_p=1.0):
    if temperature == 0:
        return F.one_hot(logits.argmax(-1), logits.size(-1)).to(logits.dtype)
    scores = logits / temperature
    if top_k is not None:
        k = min(top_k, scores.size(-1))
        indices_to_remove = scores < torch.topk(scores, k)[0][..., -1, None]
        scores = scores.masked_fill(indices_to_remove, -float("inf"))
    if top_p < 1.0:
        sorted_logits, sorted_indices = torch.sort(scores, descending=False)
        cumulative_probs = sorted_logits.softmax(dim=-1).cumsum(dim=-1)
        sorted_indices_to_remove = cumulative_probs <= (1 - top_p)
        sorted_indices_to_remove[..., -1:] = 0
        indices_to_remove = sorted_indices_to_remove.scatter(1, sorted_indices, sorted_indices_to_remove)
        scores = scores.masked_fill(indices_to_remove, -float("inf"))
    return F.softmax(scores, dim=-1)
