import torch
import torch.nn.functional as F
def padded_cross_entropy(logits, labels, pad_id):
    loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), ignore_index=pad_id, reduction="sum")
    return loss / (labels != pad_id).sum()
