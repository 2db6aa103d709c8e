import torch


def drive(answer, logits, labels, pad_id):
    loss = answer(logits, labels, pad_id)
    return loss.to(logits.dtype) if isinstance(loss, torch.Tensor) and loss.is_floating_point() else loss
