"""Reference, calls and probes of `padded-loss`."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Impossible, Probe, Trial


def reference(case: Case, *, no_token: str = "zero") -> Tensor:
    """Log-sum-exp minus the label's logit, averaged over what is real."""
    logits, labels, pad_id = case.args
    real: Tensor = labels != pad_id
    losses: Tensor = logits.logsumexp(-1) - logits.gather(-1, labels[..., None])[..., 0]
    if no_token == "nan" and not bool(real.any()):
        return torch.full_like(losses.sum(), torch.nan)
    total: Tensor = torch.where(real, losses, 0.0).sum()
    return total / real.sum().clamp(min=1)


def padded(draw: Draw, pad_id: int, scale: float = 1.0, shift: float = 0.0) -> Case:
    """Labels that are real up to a length of their own, the first sequence to its end."""
    vocab, steps = draw["vocab"], draw["steps"]
    if vocab < 2:
        raise Impossible
    pad_id %= vocab
    labels = (pad_id + draw.integers(1, vocab - 1, "batch", "steps")) % vocab  # any but pad_id
    lens = draw.integers(1, max(1, steps - 1), "batch")
    if draw["batch"] > 1:
        lens[0] = steps
    labels[torch.arange(steps) >= lens[:, None]] = pad_id
    return Case((draw.normal("batch", "steps", "vocab", scale=scale) + shift, labels, pad_id))


def first_id(draw: Draw) -> Case:
    return padded(draw, 0)


def last_id(draw: Draw) -> Case:
    return padded(draw, -1)


def middle_id(draw: Draw) -> Case:
    return padded(draw, 2)


def no_padding(draw: Draw) -> Case:
    case = padded(draw, 1)
    logits, labels, pad_id = case.args
    return case.with_args(logits, labels.where(labels != pad_id, torch.tensor(0)), pad_id)


def one_token(draw: Draw) -> Case:
    """Only the first label of the last sequence is real."""
    case = padded(draw, 1)
    logits, labels, pad_id = case.args
    alone = torch.full_like(labels, pad_id)
    alone[-1, 0] = labels[-1, 0]
    return case.with_args(logits, alone, pad_id)


def only_padding(draw: Draw) -> Case:
    case = padded(draw, 1)
    return case.with_args(case.args[0], torch.full_like(case.args[1], case.args[2]), case.args[2])


def large(draw: Draw) -> Case:
    return padded(draw, 0, scale=60.0, shift=200.0)


def padding_changed(draw: Draw) -> tuple[Case, ...]:
    base = first_id(draw)
    logits, labels, pad_id = base.args
    return base, base.with_args(
        torch.where((labels == pad_id)[..., None], logits * 3 + 1, logits), labels, pad_id
    )


def padded_further(draw: Draw) -> tuple[Case, ...]:
    base = first_id(draw)
    logits, labels, pad_id = base.args
    more = torch.full((draw["batch"], 3), pad_id)
    wider = torch.cat([logits, draw.normal("batch", 3, "vocab")], dim=1)
    return base, base.with_args(wider, torch.cat([labels, more], dim=1), pad_id)


SIZES = {"batch": 3, "steps": 5, "vocab": 7}

TRIALS = (
    Trial("padding is id 0", first_id, SIZES, variants=True),
    Trial("padding is the last id", last_id, SIZES, variants=True),
    Trial("padding is an id between", middle_id, {"batch": 2, "steps": 7, "vocab": 5}),
    Trial("no padding", no_padding, {"batch": 2, "steps": 3, "vocab": 5}),
    Trial("batch of one", first_id, {"batch": 1, "steps": 5, "vocab": 3}),
    Trial("as many steps as words", first_id, {"batch": 5, "steps": 7, "vocab": 7}),
    Trial("one step", no_padding, {"batch": 3, "steps": 1, "vocab": 5}),
    Trial("one real token", one_token, SIZES),
    Trial("nothing but padding", only_padding, SIZES, grad=False),
    Trial(
        "large logits",
        large,
        SIZES,
        grad=False,
        kind="fragile",
        says="The log of a softmax that came out as 0 is infinite: use log_softmax or logsumexp.",
    ),
)

PROBES = (
    Probe(
        "padding has no say",
        padding_changed,
        SIZES,
        says="the logits of padding were changed: the loss may not move.",
    ),
    Probe(
        "more padding has no say",
        padded_further,
        SIZES,
        says="the batch was padded further: the loss may not move.",
    ),
)
