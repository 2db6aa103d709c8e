import torch
from torch import nn
def padded_cross_entropy(logits, labels, pad_id):
    weights = (labels != pad_id).to(logits.dtype)
    unweighted = nn.CrossEntropyLoss(reduction="none")(logits.permute(0, 2, 1), labels)
    n = weights.sum()
    return ((unweighted * weights).sum(1) / weights.sum(1).clamp(min=1)).mean()
