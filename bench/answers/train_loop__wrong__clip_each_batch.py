import torch
from torch.nn import functional as F


def summed(model, tokens, pad_id):
    logits = model(tokens[:, :-1])
    target = tokens[:, 1:]
    real = target != pad_id
    return F.cross_entropy(logits[real], target[real], reduction="sum"), int(real.sum())


def train_lm(model, optimizer, batches, accumulate, max_norm, pad_id):
    model.train()
    losses = []
    for start in range(0, len(batches), accumulate):
        chunk = batches[start : start + accumulate]
        n = sum(int((t[:, 1:] != pad_id).sum()) for t in chunk)
        optimizer.zero_grad()
        total = 0.0
        for t in chunk:
            loss, _ = summed(model, t, pad_id)
            (loss / n).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            total += loss.item() / n
        optimizer.step()
        losses.append(total)
    return losses


@torch.no_grad()
def evaluate_lm(model, batches, pad_id):
    mode = model.training
    model.eval()
    s, n = 0.0, 0
    for t in batches:
        loss, k = summed(model, t, pad_id)
        s, n = s + loss.item(), n + k
    model.train(mode)
    return s / n
