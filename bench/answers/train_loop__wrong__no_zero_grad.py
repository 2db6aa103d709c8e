import torch
from torch.nn import functional as F

def loss_sum(model, tokens, pad_id):
    logits, targets = model(tokens[:, :-1]), tokens[:, 1:]
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=pad_id, reduction="sum")

def train_lm(model, optimizer, batches, accumulate, max_norm, pad_id):
    model.train()
    losses = []
    for first in range(0, len(batches), accumulate):
        group = batches[first : first + accumulate]
        count = sum((tokens[:, 1:] != pad_id).sum() for tokens in group)
        total = 0.0
        for tokens in group:
            loss = loss_sum(model, tokens, pad_id) / count
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
    total = sum(loss_sum(model, tokens, pad_id).item() for tokens in batches)
    model.train(was)
    return total / sum(int((tokens[:, 1:] != pad_id).sum()) for tokens in batches)
