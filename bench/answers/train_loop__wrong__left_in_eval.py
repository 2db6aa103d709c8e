import torch
from torch.nn import functional as F


def nll(model, t, pad_id):
    logp = model(t[:, :-1]).log_softmax(-1)
    tgt = t[:, 1:]
    real = tgt.ne(pad_id)
    return -(logp.gather(-1, tgt.unsqueeze(-1)).squeeze(-1) * real).sum(), real.sum()


def train_lm(model, optimizer, batches, accumulate, max_norm, pad_id):
    model.train()
    out = []
    for i in range(0, len(batches), accumulate):
        parts = [nll(model, t, pad_id) for t in batches[i : i + accumulate]]
        loss = sum(p for p, _ in parts) / sum(n for _, n in parts)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        out.append(loss.item())
    return out


@torch.no_grad()
def evaluate_lm(model, batches, pad_id):
    model.eval()
    parts = [nll(model, t, pad_id) for t in batches]
    return (sum(p for p, _ in parts) / sum(n for _, n in parts)).item()
