import torch

def padded_cross_entropy(logits, labels, pad_id):
    # per-token losses want the vocabulary on axis 1
    loss = torch.nn.functional.cross_entropy(logits.permute(0, 2, 1), labels, reduction="none")
    mask = (labels.reshape(-1) != pad_id).float()
    return (loss.reshape(-1) * mask).sum() / torch.clamp(mask.sum(), min=1.0)
