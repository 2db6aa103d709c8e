import torch
from torch.nn import functional as F
def train_lm(model, optimizer, batches, accumulate, max_norm, pad_id):
    model.train()
    losses = []
    for start in range(0, len(batches), accumulate):
        group = batches[start : start + accumulate]
        count = sum(int((tokens[:, 1:] != pad_id).sum()) for tokens in group)
        optimizer.zero_grad()
        total = 0.0
        for tokens in group:
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], ignore_index=pad_id, reduction="sum") / count
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        losses.append(total)
    return losses
@torch.no_grad()
def evaluate_lm(model, batches, pad_id):
    was = model.training
    model.eval()
    total, count = 0.0, 0
    for tokens in batches:
        targets = tokens[:, 1:].reshape(-1)
        logits = model(tokens[:, :-1])
        total += F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets, ignore_index=pad_id, reduction="sum").item()
        count += (targets != pad_id).sum().item()
    model.train()
    return total / count
