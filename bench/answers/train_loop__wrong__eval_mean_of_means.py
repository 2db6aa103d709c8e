import torch
from torch.nn import functional as F


def train_lm(model, optimizer, batches, accumulate, max_norm, pad_id):
    model.train()
    losses = []
    for i in range(0, len(batches), accumulate):
        optimizer.zero_grad()
        total, n = 0.0, 0
        for t in batches[i : i + accumulate]:
            target = t[:, 1:].reshape(-1)
            total = total + F.cross_entropy(model(t[:, :-1]).flatten(0, 1), target, ignore_index=pad_id, reduction="sum")
            n += (target != pad_id).sum()
        loss = total / n
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        losses.append(loss.item())
    return losses


def evaluate_lm(model, batches, pad_id):
    was = model.training
    model.eval()
    with torch.no_grad():
        means = [F.cross_entropy(model(t[:, :-1]).flatten(0, 1), t[:, 1:].reshape(-1), ignore_index=pad_id) for t in batches]
    model.train(was)
    return torch.stack(means).mean().item()
