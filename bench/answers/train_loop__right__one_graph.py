import torch
import torch.nn.functional as F
def nll(model, tokens, pad_id):
    logp = model(tokens[:, :-1]).log_softmax(-1)
    targets = tokens[:, 1:]
    real = (targets != pad_id).float()
    return -(logp.gather(2, targets.unsqueeze(-1)).squeeze(-1) * real).sum(), real.sum()
def train_lm(model, optimizer, batches, accumulate, max_norm, pad_id):
    model.train(True)
    out = []
    for i in range(len(batches) // accumulate):
        parts = [nll(model, batches[i * accumulate + j], pad_id) for j in range(accumulate)]
        loss = sum(p[0] for p in parts) / sum(p[1] for p in parts)
        for p in model.parameters():
            p.grad = None
        loss.backward()
        norm = torch.sqrt(sum((p.grad ** 2).sum() for p in model.parameters() if p.grad is not None))
        if norm > max_norm:
            for p in model.parameters():
                p.grad.mul_(max_norm / norm)
        optimizer.step()
        out.append(loss.detach())
    return out
def evaluate_lm(model, batches, pad_id):
    mode = model.training
    try:
        model.eval()
        with torch.inference_mode():
            parts = [nll(model, tokens, pad_id) for tokens in batches]
            return float(sum(a for a, _ in parts) / sum(b for _, b in parts))
    finally:
        model.train(mode)
