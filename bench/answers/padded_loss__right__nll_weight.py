import torch
import torch.nn.functional as F
def padded_cross_entropy(logits, labels, pad_id):
    weight = torch.ones(logits.shape[-1], dtype=logits.dtype, device=logits.device)
    weight[pad_id] = 0
    if (labels == pad_id).all():
        return logits.new_zeros(())
    return F.nll_loss(F.log_softmax(logits, -1).transpose(1, 2), labels, weight=weight)
