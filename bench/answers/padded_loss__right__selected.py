import torch
def padded_cross_entropy(logits, labels, pad_id):
    real = labels != pad_id
    if not real.any():
        return (logits * 0).sum()
    chosen, targets = logits[real], labels[real]
    return (torch.logsumexp(chosen, -1) - chosen.gather(1, targets[:, None])[:, 0]).mean()
