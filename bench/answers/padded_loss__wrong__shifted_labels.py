import torch
import torch.nn.functional as F


def padded_cross_entropy(logits, labels, pad_id):
    vocab = logits.size(-1)
    shift_logits = logits[:, :-1, :].reshape(-1, vocab)
    shift_labels = labels[:, 1:].reshape(-1)
    losses = F.cross_entropy(shift_logits, shift_labels, ignore_index=pad_id, reduction="sum")
    n_real = (shift_labels != pad_id).sum()
    if n_real == 0:
        return logits.new_zeros(())
    return losses / n_real
