import torch
from torch import nn

def padded_cross_entropy(logits, labels, pad_id):
    keep = labels.ne(pad_id)
    if not keep.any():
        return logits.sum() * 0.0
    return nn.CrossEntropyLoss()(logits[keep], labels[keep])
