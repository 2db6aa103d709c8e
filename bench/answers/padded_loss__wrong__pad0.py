import torch
from torch import nn
def padded_cross_entropy(logits, labels, pad_id):
    weights = (labels != 0).to(logits.dtype)
    unweighted = nn.CrossEntropyLoss(reduction="none")(logits.permute(0, 2, 1), labels)
    n = weights.sum()
    return (unweighted * weights).sum() / torch.where(n > 0, n, torch.ones_like(n))
