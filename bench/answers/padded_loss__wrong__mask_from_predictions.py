import torch


def padded_cross_entropy(logits, labels, pad_id):
    log_p = logits.log_softmax(dim=2)
    nll = -torch.gather(log_p, 2, labels[:, :, None])[:, :, 0]
    real = logits.argmax(dim=2).ne(pad_id)  # where the model says padding
    n = real.sum()
    if n == 0:
        return logits.sum() * 0
    return nll.masked_select(real).sum() / n
