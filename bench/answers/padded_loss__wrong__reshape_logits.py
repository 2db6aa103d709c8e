import torch
from torch import nn
def padded_cross_entropy(logits, labels, pad_id):
    weights = (labels != pad_id).to(logits.dtype)
    unweighted = nn.CrossEntropyLoss(reduction="none")(logits.reshape(logits.shape[0], logits.shape[2], logits.shape[1]), labels)
    n = weights.sum()
    return (unweighted * weights).sum() / torch.where(n > 0, n, torch.ones_like(n))
