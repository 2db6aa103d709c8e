import torch
from torch import nn
def _sum(model, tokens, pad_id):
    x, y = tokens[:, :-1], tokens[:, 1:]
    logits = model(x)
    loss = nn.CrossEntropyLoss(reduction="none")(logits.flatten(0, 1), y.flatten())
    mask = y.flatten().ne(pad_id)
    return (loss * mask).sum(), int(mask.sum())
def train_lm(model, optimizer, batches, accumulate, max_norm, pad_id):
    model.train()
    losses, seen, total = [], 0, 0.0
    optimizer.zero_grad(set_to_none=False)
    for step, tokens in enumerate(batches, 1):
        loss, n = _sum(model, tokens, pad_id)
        loss.backward()
        seen, total = seen + n, total + float(loss)
        if step % accumulate == 0:
            for p in model.parameters():
                if p.grad is not None:
                    p.grad /= seen
            nn.utils.clip_grad_norm_(list(model.parameters()), max_norm)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss) / n)
            seen, total = 0, 0.0
    return losses
def evaluate_lm(model, batches, pad_id):
    training = model.training
    model.eval()
    with torch.no_grad():
        sums, counts = zip(*(_sum(model, tokens, pad_id) for tokens in batches))
    if training:
        model.train()
    return torch.stack(sums).sum() / sum(counts)
