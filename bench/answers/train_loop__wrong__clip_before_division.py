import torch
from torch.nn import functional as F


def train_lm(model, optimizer, batches, accumulate, max_norm, pad_id):
    model.train()
    history = []
    params = [p for p in model.parameters() if p.requires_grad]
    loss_sum, n_tokens = 0.0, 0
    optimizer.zero_grad()
    for step, tokens in enumerate(batches, start=1):
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        logits = model(inputs)
        loss = F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=pad_id, reduction="sum")
        loss.backward()
        loss_sum += loss.item()
        n_tokens += (targets != pad_id).sum().item()
        if step % accumulate == 0:
            torch.nn.utils.clip_grad_norm_(params, max_norm)
            for p in params:
                if p.grad is not None:
                    p.grad.div_(n_tokens)
            optimizer.step()
            optimizer.zero_grad()
            history.append(loss_sum / n_tokens)
            loss_sum, n_tokens = 0.0, 0
    return history


@torch.no_grad()
def evaluate_lm(model, batches, pad_id):
    was_training = model.training
    model.eval()
    loss_sum, n_tokens = 0.0, 0
    for tokens in batches:
        targets = tokens[:, 1:]
        logits = model(tokens[:, :-1])
        loss_sum += F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=pad_id, reduction="sum").item()
        n_tokens += (targets != pad_id).sum().item()
    model.train(was_training)
    return loss_sum / n_tokens
