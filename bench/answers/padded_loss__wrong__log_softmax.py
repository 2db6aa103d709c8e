import torch
def padded_cross_entropy(logits, labels, pad_id):
    total, n = logits.sum() * 0, 0
    for b in range(labels.shape[0]):
        for t in range(labels.shape[1]):
            if labels[b, t] != pad_id:
                total = total - torch.log(torch.softmax(logits[b, t], 0))[labels[b, t]]
                n += 1
    return total / max(n, 1)
