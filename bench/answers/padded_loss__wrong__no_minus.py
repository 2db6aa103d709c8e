import torch
import torch.nn.functional as F
def padded_cross_entropy(logits, labels, pad_id):
    onehot = F.one_hot(labels, logits.size(-1)).to(logits.dtype)
    mask = labels.ne(pad_id).to(logits.dtype)
    per_token = (onehot * F.log_softmax(logits, -1)).sum(-1)
    return torch.nan_to_num((per_token * mask).sum() / mask.sum())
