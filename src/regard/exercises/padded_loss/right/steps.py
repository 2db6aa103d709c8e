import torch

def padded_cross_entropy(logits, labels, pad_id):
    log_p = torch.log_softmax(logits, dim=-1)
    picked = log_p.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    losses = -picked
    real = labels != pad_id
    total = (losses * real).sum()
    count = real.sum()
    return total / count.clamp(min=1)
