import torch


def padded_cross_entropy(logits, labels, pad_id):
    nll = -logits.log_softmax(-1).gather(-1, labels[..., None])[..., 0]
    real = (labels != pad_id).to(nll.dtype)
    steps = (nll * real).sum(0) / real.sum(0).clamp(min=1)
    any_real = (real.sum(0) > 0).to(nll.dtype)
    return (steps * any_real).sum() / any_real.sum().clamp(min=1)
