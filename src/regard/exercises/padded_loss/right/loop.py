import torch

def padded_cross_entropy(logits, labels, pad_id):
    total, n = logits.new_zeros(()), 0
    for b in range(labels.shape[0]):
        for t in range(labels.shape[1]):
            if labels[b, t] != pad_id:
                total = total + torch.logsumexp(logits[b, t], dim=0) - logits[b, t, labels[b, t]]
                n += 1
    return total / n if n else total
