import torch

def picked(model, tokens, pad_id):
    target = tokens[:, 1:]
    logs = torch.log_softmax(model(tokens[:, :-1]), dim=-1)
    chosen = -logs.gather(2, target.unsqueeze(2)).squeeze(2)
    return chosen[target != pad_id]

def train_lm(model, optimizer, batches, accumulate, max_norm, pad_id):
    model.train(True)
    history, waiting = [], []
    for number, tokens in enumerate(batches, start=1):
        waiting.append(picked(model, tokens, pad_id))
        if number % accumulate == 0:
            loss = torch.cat(waiting).mean()
            loss.backward()
            parameters = [p for p in model.parameters() if p.grad is not None]
            norm = torch.stack([p.grad.norm() for p in parameters]).norm()
            for p in parameters:
                p.grad.mul_((max_norm / norm).clamp(max=1.0))
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            history.append(loss.detach())
            waiting = []
    return history

def evaluate_lm(model, batches, pad_id):
    training = model.training
    try:
        model.eval()
        with torch.inference_mode():
            return torch.cat([picked(model, tokens, pad_id) for tokens in batches]).mean()
    finally:
        model.train(training)
