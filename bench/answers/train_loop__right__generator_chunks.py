import contextlib
import torch
from torch.nn import functional as F


def _nll(model, tokens, pad_id):
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    logits = model(inputs)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=pad_id, reduction="sum")


def _real(tokens, pad_id):
    return (tokens[:, 1:] != pad_id).sum()


@contextlib.contextmanager
def _evaluating(model):
    modes = {m: m.training for m in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for m, mode in modes.items():
            m.training = mode


def train_lm(model, optimizer, batches, accumulate, max_norm, pad_id):
    model.train()
    losses = []
    groups = [batches[i : i + accumulate] for i in range(0, len(batches), accumulate)]
    for group in groups:
        total = sum(_real(t, pad_id) for t in group)
        optimizer.zero_grad()
        value = 0.0
        for t in group:
            part = _nll(model, t, pad_id) / total
            part.backward()
            value += part.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        losses.append(value)
    return losses


@torch.inference_mode()
def evaluate_lm(model, batches, pad_id):
    with _evaluating(model):
        nll = sum(_nll(model, t, pad_id) for t in batches)
    return (nll / sum(_real(t, pad_id) for t in batches)).item()
